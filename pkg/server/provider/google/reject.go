// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
)

const (
	// retryAfter is when a request that was rejected may succeed: something has to change.
	retryAfter = 30 * time.Second
	// capacityRetryAfter is the same for one for which there was no capacity.
	capacityRetryAfter = 3 * time.Minute
	// quotaRetryAfter is the same for one that exceeds a quota, which machines that are
	// deleted make room in.
	quotaRetryAfter = 2 * time.Minute
)

// rejectGroup rejects what the arguments of a group cause.
func rejectGroup(spec provider.Spec, err error) error {
	return &cloud.Rejection{Scope: cloud.Scope{Group: spec.Group}, RetryAfter: retryAfter, Err: err}
}

// narrow returns the scope of requests that are like this one.
func (p plan) narrow() cloud.Scope {
	return cloud.Scope{Group: p.spec.Group, Type: p.spec.Type.Name, Subnet: p.spec.Subnet}
}

// market returns the scope of requests for the same type in the same market. That of spot
// machines is known by the group, which has its arguments.
func (p plan) market() cloud.Scope {
	s := cloud.Scope{Type: p.spec.Type.Name}
	if p.args.provisioning == spot {
		s.Group = p.spec.Group
	}
	return s
}

// Codes of operations that have created nothing, without the ending _WITH_DETAILS.
var (
	noCapacity   = []string{"ZONE_RESOURCE_POOL_EXHAUSTED", "RESOURCE_POOL_EXHAUSTED", "STOCKOUT"}
	noAddresses  = []string{"IP_SPACE_EXHAUSTED"}
	overQuota    = []string{"QUOTA_EXCEEDED", "LIMIT_EXCEEDED"}
	invalidCodes = []string{"INVALID", "RESOURCE_NOT_FOUND", "PERMISSIONS_ERROR", "UNSUPPORTED_OPERATION", "BAD_REQUEST"}
)

// rejectCodes returns the rejection that the failure of an operation means, nil if it does not
// say that nothing was created.
func (p plan) rejectCodes(failed *operationFailure) error {
	switch {
	case failed.has(noCapacity...):
		return p.outOfCapacity(failed)
	case failed.has(noAddresses...):
		return p.outOfAddresses(failed)
	case failed.has(overQuota...):
		return p.outOfQuota(failed)
	case failed.has(invalidCodes...):
		return rejectGroup(p.spec, failed)
	}
	return nil
}

func (p plan) outOfCapacity(err error) error {
	kind := ""
	if p.args.provisioning == spot {
		kind = "spot "
	}
	return &cloud.Rejection{Scope: p.market(), RetryAfter: capacityRetryAfter, Err: fmt.Errorf("%w: %w",
		provider.OutOfCapacity("the zone has no %smachine of type %s", kind, p.spec.Type.Name), err)}
}

func (p plan) outOfAddresses(err error) error {
	return &cloud.Rejection{Scope: cloud.Scope{Subnet: p.spec.Subnet}, RetryAfter: quotaRetryAfter, Err: fmt.Errorf("%w: %w",
		provider.OutOfCapacity("no address left in subnet %s", p.spec.Subnet), err)}
}

func (p plan) outOfQuota(err error) error {
	return &cloud.Rejection{Scope: cloud.Scope{Type: p.spec.Type.Name}, RetryAfter: quotaRetryAfter, Err: fmt.Errorf("%w: %w",
		provider.OutOfCapacity("a quota of the project has no room for type %s", p.spec.Type.Name), err)}
}

// rejectResponse returns what the error of a request means: a rejection, or the error itself
// if the machine may exist or the same request may succeed.
func (p plan) rejectResponse(err error) error {
	response, ok := googleapi.AsError(err)
	if !ok {
		return err
	}
	switch {
	case googleapi.IsThrottled(err):
		return throttled(err)
	case len(response.Reasons) == 0:
		return err // not of the API
	case response.Has("quotaExceeded", "QUOTA_EXCEEDED", "limitExceeded"):
		return p.outOfQuota(err)
	case response.Status == http.StatusForbidden:
		return &cloud.Rejection{RetryAfter: retryAfter, Err: err}
	case response.Status == http.StatusNotFound && strings.Contains(response.Message, "/subnetworks/"):
		return &cloud.Rejection{Scope: cloud.Scope{Subnet: p.spec.Subnet}, RetryAfter: retryAfter, Err: err}
	case response.Status == http.StatusNotFound, response.Status == http.StatusBadRequest && !response.Has("resourceNotReady"):
		return rejectGroup(p.spec, err)
	}
	return err
}
