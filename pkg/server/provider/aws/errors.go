// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package aws

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/smithy-go"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

// Error codes with special handling
// (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html).
const (
	codeNotFound        = "InvalidInstanceID.NotFound"
	codeTokenMismatch   = "IdempotentParameterMismatch"
	codeTokenTerminated = "IdempotentInstanceTerminated"
	codeNoAddress       = "InsufficientFreeAddressesInSubnet"
)

var (
	throttlingCodes = []string{
		"RequestLimitExceeded", "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled",
		"RequestThrottledException", "TooManyRequestsException", "EC2ThrottledException", "SlowDown",
	}
	// capacityCodes mean that the zone has no capacity for a type at present.
	capacityCodes = []string{
		"InsufficientInstanceCapacity", "InsufficientCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity",
		"ReservationCapacityExceeded", "UnfulfillableCapacity", "SpotMaxPriceTooLow", "InsufficientVolumeCapacity",
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
func launchError(spec provider.Spec, err error) error {
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
	case slices.Contains(capacityCodes, code):
		return reject(typeScope, capacityRetryAfter, full("%s for %s", code, described(spec)))
	case slices.Contains(quotaCodes, code):
		return reject(typeScope, quotaRetryAfter, full("%s for %s", code, described(spec)))
	case code == codeNoAddress:
		return reject(cloud.Scope{Subnet: spec.Subnet}, addressRetryAfter, full("no free address in subnet %s", spec.Subnet))
	case slices.Contains(subnetCodes, code):
		return reject(cloud.Scope{Subnet: spec.Subnet}, invalidRetryAfter, err)
	case code == "Unsupported":
		return reject(typeScope, capacityRetryAfter, err)
	case isRefusal(err):
		return rejectGroup(spec, err)
	}
	return err
}

// described returns the type of a request, and its market unless that is on-demand.
func described(spec provider.Spec) string {
	if spec.Market == "" || spec.Market == marketOnDemand {
		return spec.Type.Name
	}
	return strings.Join([]string{spec.Type.Name, spec.Market}, " ")
}

// isAccess reports whether a call may succeed with other credentials, or later.
func isAccess(err error) bool {
	return slices.Contains(accessCodes, codeOf(err)) || slices.Contains(throttlingCodes, codeOf(err))
}
