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
	// Scope is what else would be rejected.
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

// Scope is a set of requests: those that have all of its fields that are not empty.
type Scope struct {
	Group  instance.GroupKey
	Type   string
	Subnet string
	// Market is that of provider.Spec.
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
	// defaultRetryAfter is that of a Rejection without one.
	defaultRetryAfter = time.Minute
	// minFailedDelay and maxFailedDelay bound the growing time between two launches of a
	// scope whose machines fail before they have run.
	minFailedDelay = 30 * time.Second
	maxFailedDelay = 10 * time.Minute
	// unusedAge is how long a scope is remembered after its requests may succeed.
	unusedAge = 24 * time.Hour
)

// remembered is a scope whose requests are rejected without a call.
type remembered struct {
	scope Scope
	err   error
	until time.Time
	// probe is the id of the only request that may be made after that time, until its
	// outcome is known. It is empty if there is none.
	probe string
	// failed is how many machines of the scope have failed one after another, zero if the
	// cloud has rejected the request.
	failed int
}

// rejections are the scopes that are rejected at present.
type rejections struct {
	list []*remembered
}

// check returns why a request is rejected without a call. When the time of a rejection
// is over, the request becomes the probe.
func (r *rejections) check(spec provider.Spec, now time.Time) error {
	var probed []*remembered
	for _, one := range r.list {
		if !one.scope.contains(spec) {
			continue
		}
		if now.Before(one.until) || one.probe != "" && one.probe != spec.ID {
			return fmt.Errorf("was rejected before: %w", one.err)
		}
		probed = append(probed, one)
	}
	for _, one := range probed {
		one.probe = spec.ID
	}
	return nil
}

// outOfCapacity returns the lack of capacity for which a request is rejected without a
// call, nil if there is none.
func (r *rejections) outOfCapacity(spec provider.Spec, now time.Time) error {
	for _, one := range r.list {
		if err, ok := provider.AsCapacityError(one.err); ok && one.scope.contains(spec) && now.Before(one.until) {
			return err
		}
	}
	return nil
}

// full reports whether all requests for a subnet are rejected.
func (r *rejections) full(subnet string, now time.Time) bool {
	return slices.ContainsFunc(r.list, func(one *remembered) bool {
		return one.scope == Scope{Subnet: subnet} && now.Before(one.until)
	})
}

// rejected remembers a rejection.
func (r *rejections) rejected(rejection *Rejection, now time.Time) {
	one := r.remember(rejection.Scope, rejection.Err, now)
	one.failed = 0
	one.until = now.Add(defaultRetryAfter)
	if rejection.RetryAfter > 0 {
		one.until = now.Add(rejection.RetryAfter)
	}
}

// failedToRun remembers that a machine has failed before it has run. The next one would
// probably fail too.
func (r *rejections) failedToRun(spec provider.Spec, err error, now time.Time) {
	one := r.remember(scopeOf(spec), err, now)
	one.failed++
	delay := minFailedDelay
	for n := 1; n < one.failed && delay < maxFailedDelay; n++ {
		delay *= 2
	}
	one.until = now.Add(min(delay, maxFailedDelay))
}

func (r *rejections) remember(scope Scope, err error, now time.Time) *remembered {
	// Nothing was requested for long. The group may have been deleted.
	r.list = slices.DeleteFunc(r.list, func(one *remembered) bool { return now.Sub(one.until) > unusedAge })
	at := slices.IndexFunc(r.list, func(one *remembered) bool { return one.scope == scope })
	if at < 0 {
		r.list = append(r.list, &remembered{scope: scope})
		at = len(r.list) - 1
	}
	r.list[at].err, r.list[at].probe = err, ""
	return r.list[at]
}

// launched forgets the rejections that a launched machine disproves.
func (r *rejections) launched(spec provider.Spec) {
	r.list = slices.DeleteFunc(r.list, func(one *remembered) bool { return one.failed == 0 && one.scope.contains(spec) })
}

// running forgets the failures that a running machine disproves.
func (r *rejections) running(spec provider.Spec) {
	r.list = slices.DeleteFunc(r.list, func(one *remembered) bool { return one.scope.contains(spec) })
}

// release lets another request be the probe, because that of an instance has no outcome.
func (r *rejections) release(id string) {
	for _, one := range r.list {
		if one.probe == id {
			one.probe = ""
		}
	}
}

// asRejection returns the rejection that an error wraps.
func asRejection(err error) (*Rejection, bool) {
	return errors.AsType[*Rejection](err)
}
