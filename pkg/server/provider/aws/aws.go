// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package aws is a provider of instances of Amazon EC2 (docs/aws.md). It only calls EC2.
// Package cloud decides which calls to make.
package aws

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	awssdk "github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

const (
	// visibilityDelay is how long EC2 may not show an instance that it has launched: AWS advises to
	// wait up to five minutes
	// (https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html).
	visibilityDelay = 5 * time.Minute
	// notFoundDelay is how long after EC2 has shown an instance an error
	// InvalidInstanceID.NotFound proves nothing. EC2 shows a terminated instance for about an
	// hour, so it should know the instance
	// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_TerminateInstances.html).
	notFoundDelay = 15 * time.Minute
	// callTimeout limits a call that changes something.
	callTimeout = 30 * time.Second
	// pageSize is the largest page of a list
	// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstances.html).
	pageSize = 1000
)

// API makes the calls for the instances of one shard. It implements cloud.API.
type API struct {
	calls   calls
	options *Options
	shard   provider.Shard
	limits  cloud.Limits
	started time.Time
	// step is called before each step of a launch or a termination. Tests use it to stop the
	// process there.
	step func(string)

	// mu guards the fields below. Except for seen, they only save calls.
	mu sync.Mutex
	// seen is when EC2 last showed an instance, by instance id of EC2.
	seen map[string]time.Time
	// impaired has the reasons of the instances whose status checks failed at impairedAt.
	impaired   map[string]string
	impairedAt time.Time
	images     map[string]cachedImage
}

var (
	_ cloud.API         = (*API)(nil)
	_ cloud.KnownFinder = (*API)(nil)
)

// NewAPI returns the calls for the instances of a shard. It sends no request.
func NewAPI(o *Options, shard provider.Shard) (*API, error) { return newAPI(o, shard, nil) }

// newAPI returns an API that connects with dial, or normally if dial is nil.
func newAPI(o *Options, shard provider.Shard, dial dialer) (*API, error) {
	c, err := connect(shard, dial)
	if err != nil {
		return nil, err
	}
	return c.newAPI(o), nil
}

// ec2 returns the calls of EC2.
func (c connection) ec2(o *Options) calls {
	return callsOf(ec2.NewFromConfig(c.sdk, func(options *ec2.Options) {
		if o.Endpoint != "" {
			options.BaseEndpoint = awssdk.String(o.Endpoint)
		}
		options.HTTPClient = c.client(options.HTTPClient)
		// The caller repeats calls, within its own limits.
		options.RetryMaxAttempts = 1
		// All errors are returned. The SDK would only log messages about connections.
		options.Logger = logging.Nop{}
	}))
}

func (c connection) newAPI(o *Options) *API {
	return &API{
		calls:   c.ec2(o),
		options: o,
		shard:   c.shard,
		limits: cloud.Limits{
			Reads:           cloud.Budget{PerSecond: 5, Burst: 20},
			Writes:          cloud.Budget{PerSecond: 2, Burst: 5},
			Launches:        4,
			Batch:           50,
			VisibilityDelay: visibilityDelay,
			PollInterval:    5 * time.Second,
			IdleInterval:    time.Minute,
		},
		started: time.Now(),
		step:    func(string) {},
		seen:    map[string]time.Time{},
		images:  map[string]cachedImage{},
	}
}

// plainBody wraps do so that the body of a request has only the methods Read and Close. The
// SDK closes the body when the response begins. That may be before package http has read the
// end of the body. Then WriteTo of the SDK's body fails, and package http closes the
// connection before the response is read.
func plainBody(do deadline.HTTPClient) deadline.HTTPClient {
	return func(r *http.Request) (*http.Response, error) {
		if r.Body != nil {
			r = r.WithContext(r.Context())
			r.Body = struct{ io.ReadCloser }{r.Body}
		}
		return do(r)
	}
}

// Limits returns limits far below EC2's own
// (https://docs.aws.amazon.com/ec2/latest/devguide/ec2-api-throttling.html).
func (a *API) Limits() cloud.Limits { return a.limits }

// call is a method of the EC2 client of the SDK.
type call[Input, Output any] func(context.Context, *Input, ...func(*ec2.Options)) (*Output, error)

// calls are the EC2 methods that the provider uses. No type that is converted to an interface
// may contain an *ec2.Client, directly or in a field: otherwise the linker keeps the hundreds
// of methods of the client, which are 30 MB.
type calls struct {
	runInstances           call[ec2.RunInstancesInput, ec2.RunInstancesOutput]
	terminateInstances     call[ec2.TerminateInstancesInput, ec2.TerminateInstancesOutput]
	describeInstances      call[ec2.DescribeInstancesInput, ec2.DescribeInstancesOutput]
	describeInstanceStatus call[ec2.DescribeInstanceStatusInput, ec2.DescribeInstanceStatusOutput]
	describeSubnets        call[ec2.DescribeSubnetsInput, ec2.DescribeSubnetsOutput]
	describeImages         call[ec2.DescribeImagesInput, ec2.DescribeImagesOutput]

	describeNetworkInterfaces call[ec2.DescribeNetworkInterfacesInput, ec2.DescribeNetworkInterfacesOutput]
	attachNetworkInterface    call[ec2.AttachNetworkInterfaceInput, ec2.AttachNetworkInterfaceOutput]
	detachNetworkInterface    call[ec2.DetachNetworkInterfaceInput, ec2.DetachNetworkInterfaceOutput]

	// Only the questions of nstance-admin provider check use these.
	createNetworkInterface call[ec2.CreateNetworkInterfaceInput, ec2.CreateNetworkInterfaceOutput]
	deleteNetworkInterface call[ec2.DeleteNetworkInterfaceInput, ec2.DeleteNetworkInterfaceOutput]
	getConsoleOutput       call[ec2.GetConsoleOutputInput, ec2.GetConsoleOutputOutput]
}

func callsOf(client *ec2.Client) calls {
	return calls{
		runInstances:           client.RunInstances,
		terminateInstances:     client.TerminateInstances,
		describeInstances:      client.DescribeInstances,
		describeInstanceStatus: client.DescribeInstanceStatus,
		describeSubnets:        client.DescribeSubnets,
		describeImages:         client.DescribeImages,

		describeNetworkInterfaces: client.DescribeNetworkInterfaces,
		attachNetworkInterface:    client.AttachNetworkInterface,
		detachNetworkInterface:    client.DetachNetworkInterface,

		createNetworkInterface: client.CreateNetworkInterface,
		deleteNetworkInterface: client.DeleteNetworkInterface,
		getConsoleOutput:       client.GetConsoleOutput,
	}
}

// dialer connects to an address.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// connection configures the clients of a shard.
type connection struct {
	sdk   awssdk.Config
	shard provider.Shard
	// dial is nil for normal connections.
	dial dialer
}

// connect reads the configuration of the SDK. It sends no request.
func connect(shard provider.Shard, dial dialer) (connection, error) {
	if err := provider.ValidateID(shard.ClusterID); err != nil {
		return connection{}, fmt.Errorf("cluster id: %w", err)
	}
	if err := identifier.Validate(shard.ID); err != nil {
		return connection{}, fmt.Errorf("shard id: %w", err)
	}
	if !regions.MatchString(shard.Region) {
		return connection{}, fmt.Errorf("region: %q must be the name of a region, such as us-west-2", shard.Region)
	}
	sdk, err := config.LoadDefaultConfig(context.Background(), config.WithRegion(shard.Region))
	if err != nil {
		return connection{}, fmt.Errorf("read the configuration of the SDK: %w", err)
	}
	return connection{sdk, shard, dial}, nil
}

// client returns the HTTP client for an SDK client, which would use usual by default.
func (c connection) client(usual awssdk.HTTPClient) deadline.HTTPClient {
	if c.dial != nil {
		usual = awshttp.NewBuildableClient().WithTransportOptions(func(t *http.Transport) { t.DialContext = c.dial })
	}
	return plainBody(usual.Do)
}

// Error codes with special handling
// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html).
const (
	codeNotFound        = "InvalidInstanceID.NotFound"
	codeTokenMismatch   = "IdempotentParameterMismatch"
	codeTokenTerminated = "IdempotentInstanceTerminated"
	codeNoAddress       = "InsufficientFreeAddressesInSubnet"
	codePriceTooLow     = "SpotMaxPriceTooLow"
	codeUnsupported     = "Unsupported"
)

var (
	throttlingCodes = []string{
		"RequestLimitExceeded", "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled",
		"RequestThrottledException", "TooManyRequestsException", "EC2ThrottledException", "SlowDown",
	}
	// capacityCodes mean that the zone has no capacity for a type at present.
	capacityCodes = []string{
		"InsufficientInstanceCapacity", "InsufficientCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity",
		"ReservationCapacityExceeded", "UnfulfillableCapacity", codePriceTooLow, "InsufficientVolumeCapacity",
	}
	// quotaCodes mean that the account has used up a quota.
	quotaCodes = []string{"VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded", "VolumeLimitExceeded"}
	// subnetCodes concern the subnet, independent of the instance.
	subnetCodes = []string{"InvalidSubnetID.NotFound", "InvalidSubnetID.Malformed", "NetworkInterfaceLimitExceeded"}
	// accessCodes concern the credentials or the time of the request. The same request may
	// succeed with other credentials.
	accessCodes = []string{
		"AuthFailure", "InvalidClientTokenId", "ExpiredToken", "ExpiredTokenException", "RequestExpired", "SignatureDoesNotMatch",
		"MissingAuthenticationToken", "IncompleteSignature", "UnrecognizedClientException", "RequestInTheFuture", "RequestTimeTooSkewed",
	}
)

const (
	// capacityRetryAfter is the delay until a type without capacity is launched again.
	capacityRetryAfter = 3 * time.Minute
	// quotaRetryAfter is the delay until a type that exceeds a quota is launched again.
	quotaRetryAfter = 3 * time.Minute
	// addressRetryAfter is the delay after a subnet had no free address.
	addressRetryAfter = time.Minute
	// invalidRetryAfter is the delay after an error that a user has to correct.
	invalidRetryAfter = 30 * time.Second
)

// codeOf returns the error code of a response, or an empty text without a response.
func codeOf(err error) string {
	if response, ok := errors.AsType[smithy.APIError](err); ok {
		return response.ErrorCode()
	}
	return ""
}

// isRefusal reports whether EC2 has refused a call because of its content. Such a call has
// changed nothing.
func isRefusal(err error) bool {
	response, ok := errors.AsType[*awshttp.ResponseError](err)
	return ok && codeOf(err) != "" && response.HTTPStatusCode() >= 400 && response.HTTPStatusCode() < 500
}

// classify wraps cloud.ErrThrottled around the error of a throttled call.
func classify(err error) error {
	if slices.Contains(throttlingCodes, codeOf(err)) {
		return fmt.Errorf("%w: %w", cloud.ErrThrottled, err)
	}
	return err
}

// rejectGroup rejects the requests of a group, whose arguments have caused an error.
func rejectGroup(spec provider.Spec, err error) error {
	return &cloud.Rejection{Scope: cloud.Scope{Group: spec.Group}, RetryAfter: invalidRetryAfter, Err: err}
}

// launchError converts the error of a launch. It returns a rejection if EC2 has certainly
// created nothing, and otherwise the error.
func launchError(zone string, spec provider.Spec, err error) error {
	code := codeOf(err)
	typeScope := cloud.Scope{Type: spec.Type.Name, Market: spec.Market}
	reject := func(scope cloud.Scope, after time.Duration, err error) error {
		return &cloud.Rejection{Scope: scope, RetryAfter: after, Err: err}
	}
	full := func(format string, args ...any) error {
		return fmt.Errorf("%w: %w", provider.OutOfCapacity(format, args...), err)
	}
	switch {
	case code == codeTokenMismatch:
		return fmt.Errorf("%w: %w", cloud.ErrTokenUsed, err)
	case slices.Contains(throttlingCodes, code), slices.Contains(accessCodes, code):
		return classify(err)
	case code == codePriceTooLow:
		// Other groups may have another price.
		typeScope.Group = spec.Group
		return reject(typeScope, capacityRetryAfter, full("%s for %s", code, spec.TypeInMarket()))
	case slices.Contains(capacityCodes, code):
		return reject(typeScope, capacityRetryAfter, full("%s for %s", code, spec.TypeInMarket()))
	case slices.Contains(quotaCodes, code):
		return reject(typeScope, quotaRetryAfter, full("%s for %s", code, spec.TypeInMarket()))
	case code == codeNoAddress:
		return reject(cloud.Scope{Subnet: spec.Subnet}, addressRetryAfter, full("no free address in subnet %s", spec.Subnet))
	case slices.Contains(subnetCodes, code):
		return reject(cloud.Scope{Subnet: spec.Subnet}, invalidRetryAfter, err)
	case code == codeUnsupported && isNotOffered(err):
		return reject(typeScope, capacityRetryAfter, full("zone %s does not offer %s", zone, spec.TypeInMarket()))
	case code == codeUnsupported:
		// The arguments of the group are not possible with the type.
		typeScope.Group = spec.Group
		return reject(typeScope, capacityRetryAfter, err)
	case isRefusal(err):
		return rejectGroup(spec, err)
	}
	return err
}

// isNotOffered reports whether an error of codeUnsupported means that the zone does not offer the type,
// or not in the market. With another message an argument is not possible with the type. EC2 documents
// the code, and not its messages
// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html).
func isNotOffered(err error) bool {
	response, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return false
	}
	message := strings.ToLower(response.ErrorMessage())
	return strings.Contains(message, "instance type") && strings.Contains(message, "availability zone") ||
		strings.Contains(message, "requested configuration is currently not supported")
}

// isAccess reports whether a call may succeed with other credentials, or later.
func isAccess(err error) bool {
	return slices.Contains(accessCodes, codeOf(err)) || slices.Contains(throttlingCodes, codeOf(err))
}
