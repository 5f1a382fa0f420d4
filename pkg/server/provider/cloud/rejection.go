// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// Rejection is the response to a request that has created nothing, and would get the same
// response if it were repeated soon.
type Rejection struct {
	// Scope is the set of requests that the cloud would reject too.
	Scope Scope
	// RetryAfter is when a request of the scope may succeed.
	RetryAfter time.Duration
	// Err wraps provider.OutOfCapacity if the cloud has no capacity or quota.
	Err error
}

// Error returns the error of the cloud.
func (r *Rejection) Error() string { return r.Err.Error() }

// Unwrap returns the error of the cloud.
func (r *Rejection) Unwrap() error { return r.Err }

// Scope is a set of requests: all requests that match its fields. An empty field matches all.
type Scope struct {
	Group  instance.GroupKey
	Type   string
	Subnet string
	// Market is the market of a provider.Spec.
	Market string
}

// scopeOf returns the narrowest scope that contains a spec.
func scopeOf(spec provider.Spec) Scope {
	return Scope{Group: spec.Group, Type: spec.Type.Name, Subnet: spec.Subnet, Market: spec.Market}
}

func (s Scope) contains(spec provider.Spec) bool {
	return (s.Group == instance.GroupKey{} || s.Group == spec.Group) &&
		(s.Type == "" || s.Type == spec.Type.Name) &&
		(s.Subnet == "" || s.Subnet == spec.Subnet) &&
		(s.Market == "" || s.Market == spec.Market)
}

const (
	// defaultRetryAfter is the default of Rejection.RetryAfter.
	defaultRetryAfter = time.Minute
	// minFailedDelay and maxFailedDelay bound the growing time between two launches of a
	// scope whose VMs fail before they have run.
	minFailedDelay = 30 * time.Second
	maxFailedDelay = 10 * time.Minute
	// noCapacityDelay is the time between two launches of a scope whose VMs end for lack of capacity
	// before they have run. It is as long as after a rejection for lack of capacity.
	noCapacityDelay = 3 * time.Minute
	// unusedAge is how long a scope is remembered after its requests may succeed.
	unusedAge = 24 * time.Hour
)

// remembered is a scope whose requests are rejected without a call.
type remembered struct {
	scope Scope
	err   error
	until time.Time
	// probe is the id of the only request that may be made after until. It is cleared once
	// the result of the request is known.
	probe string
	// failed is how many VMs of the scope have failed one after another, or zero if the
	// cloud has rejected the request.
	failed int
}

// rejections has the scopes that are rejected at present.
type rejections struct {
	list []*remembered
}

// check returns why a request is rejected without a call. When the time of a rejection
// is over, the request becomes the probe.
func (r *rejections) check(spec provider.Spec, now time.Time) error {
	var probed []*remembered
	for _, known := range r.list {
		if !known.scope.contains(spec) {
			continue
		}
		if now.Before(known.until) || known.probe != "" && known.probe != spec.ID {
			return fmt.Errorf("was rejected before: %w", known.err)
		}
		probed = append(probed, known)
	}
	for _, known := range probed {
		known.probe = spec.ID
	}
	return nil
}

// outOfCapacity returns the CapacityError with which a request is rejected without a call, or
// nil.
func (r *rejections) outOfCapacity(spec provider.Spec, now time.Time) error {
	for _, known := range r.list {
		if err, ok := provider.AsCapacityError(known.err); ok && known.scope.contains(spec) && now.Before(known.until) {
			return err
		}
	}
	return nil
}

// full reports whether all requests for a subnet are rejected.
func (r *rejections) full(subnet string, now time.Time) bool {
	return slices.ContainsFunc(r.list, func(known *remembered) bool {
		return known.scope == Scope{Subnet: subnet} && now.Before(known.until)
	})
}

// rejected remembers a rejection.
func (r *rejections) rejected(rejection *Rejection, now time.Time) {
	known := r.remember(rejection.Scope, rejection.Err, now)
	known.failed = 0
	known.until = now.Add(defaultRetryAfter)
	if rejection.RetryAfter > 0 {
		known.until = now.Add(rejection.RetryAfter)
	}
}

// failedToRun stores that a VM has failed before it was running. The next VM of its scope
// would probably fail too. The delay grows, except after a lack of capacity.
func (r *rejections) failedToRun(spec provider.Spec, err error, now time.Time) {
	known := r.remember(scopeOf(spec), err, now)
	known.failed++
	delay := minFailedDelay
	for n := 1; n < known.failed && delay < maxFailedDelay; n++ {
		delay *= 2
	}
	if _, isLack := provider.AsCapacityError(err); isLack {
		delay = noCapacityDelay
	}
	known.until = now.Add(min(delay, maxFailedDelay))
}

func (r *rejections) remember(scope Scope, err error, now time.Time) *remembered {
	// After a long time without a request the group may have been deleted.
	r.list = slices.DeleteFunc(r.list, func(known *remembered) bool { return now.Sub(known.until) > unusedAge })
	at := slices.IndexFunc(r.list, func(known *remembered) bool { return known.scope == scope })
	if at < 0 {
		r.list = append(r.list, &remembered{scope: scope})
		at = len(r.list) - 1
	}
	r.list[at].err, r.list[at].probe = err, ""
	return r.list[at]
}

// launched forgets the rejections that a launched VM disproves.
func (r *rejections) launched(spec provider.Spec) {
	r.list = slices.DeleteFunc(r.list, func(known *remembered) bool { return known.failed == 0 && known.scope.contains(spec) })
}

// running forgets the failures that a running VM disproves.
func (r *rejections) running(spec provider.Spec) {
	r.list = slices.DeleteFunc(r.list, func(known *remembered) bool { return known.scope.contains(spec) })
}

// release lets another request be the probe, because the request of an instance has no
// result.
func (r *rejections) release(id string) {
	for _, known := range r.list {
		if known.probe == id {
			known.probe = ""
		}
	}
}

// asRejection returns the rejection that an error wraps.
func asRejection(err error) (*Rejection, bool) {
	return errors.AsType[*Rejection](err)
}
