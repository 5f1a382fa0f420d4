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

// Codes of errors that have a meaning of their own.
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
	// capacityCodes mean that the zone has no machine of a type at present.
	capacityCodes = []string{
		"InsufficientInstanceCapacity", "InsufficientCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity",
		"ReservationCapacityExceeded", "UnfulfillableCapacity", "SpotMaxPriceTooLow",
	}
	// quotaCodes mean that the account may not have more.
	quotaCodes = []string{"VcpuLimitExceeded", "InstanceLimitExceeded", "MaxSpotInstanceCountExceeded", "VolumeLimitExceeded"}
	// subnetCodes are about the subnet, whatever is launched there.
	subnetCodes = []string{"InvalidSubnetID.NotFound", "InvalidSubnetID.Malformed", "NetworkInterfaceLimitExceeded"}
	// accessCodes are about the credentials, or the time of the request. The same request
	// may succeed with others.
	accessCodes = []string{
		"AuthFailure", "InvalidClientTokenId", "ExpiredToken", "ExpiredTokenException", "RequestExpired", "SignatureDoesNotMatch",
		"MissingAuthenticationToken", "IncompleteSignature", "UnrecognizedClientException", "RequestInTheFuture", "RequestTimeTooSkewed",
	}
)

const (
	// capacityRetryAfter is when a type that a zone had no machine of may be launched.
	capacityRetryAfter = 3 * time.Minute
	// quotaRetryAfter is the same of one that exceeds a quota.
	quotaRetryAfter = 3 * time.Minute
	// addressRetryAfter is the same of a subnet without a free address.
	addressRetryAfter = time.Minute
	// invalidRetryAfter is the same of what has to be corrected.
	invalidRetryAfter = 30 * time.Second
)

// codeOf returns the code with which the service has responded, empty without a response.
func codeOf(err error) string {
	if response, ok := errors.AsType[smithy.APIError](err); ok {
		return response.ErrorCode()
	}
	return ""
}

// isRefusal reports whether the service has refused a call for what it contains: it has
// changed nothing.
func isRefusal(err error) bool {
	response, ok := errors.AsType[*awshttp.ResponseError](err)
	return ok && codeOf(err) != "" && response.HTTPStatusCode() >= 400 && response.HTTPStatusCode() < 500
}

// classify wraps cloud.ErrThrottled around the error of a call that was throttled.
func classify(err error) error {
	if slices.Contains(throttlingCodes, codeOf(err)) {
		return fmt.Errorf("%w: %w", cloud.ErrThrottled, err)
	}
	return err
}

// rejectGroup rejects what the arguments of a group cause.
func rejectGroup(spec provider.Spec, err error) error {
	return &cloud.Rejection{Scope: cloud.Scope{Group: spec.Group}, RetryAfter: invalidRetryAfter, Err: err}
}

// launchError returns what the error of a launch means: a rejection if the service has
// certainly created nothing, or else the error.
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

// described returns the type of a request, with its market if that is not the usual one.
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
