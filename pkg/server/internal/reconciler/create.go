// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provision"
	"nstance.dev/operator/pkg/server/puidv7"
)

// create stores the record of a new managed instance and creates the instance
// at the provider. No further records are stored while creation fails: they
// would only become old.
func (r *reconciliation) create(ctx context.Context, a action, now time.Time) error {
	return r.createManaged(func() error {
		if len(r.group.Variants) > 0 {
			return r.createCandidate(ctx, a, nil, now)
		}
		subnet, err := r.subnet(ctx, r.group.SubnetPools)
		if err != nil {
			return r.failed("", err)
		}
		record, err := r.newRecord(r.group.InfraConfigHash, now)
		if err == nil {
			err = r.store(ctx, a, record)
		}
		if err != nil {
			return r.failed("", err)
		}
		return r.failed(record.ID, r.createInSubnet(ctx, record, subnet))
	})
}

// newRecord returns the record of a new managed instance.
func (r *reconciliation) newRecord(infraConfigHash string, now time.Time) (*instance.Record, error) {
	id, err := puidv7.New(r.group.Kind)
	if err != nil {
		return nil, err
	}
	return &instance.Record{ID: id.String(), Tenant: r.key.Tenant, Group: r.key.Group, InfraConfigHash: infraConfigHash, CreatedAt: now}, nil
}

// store stores the record of a new managed instance.
func (r *reconciliation) store(ctx context.Context, a action, record *instance.Record) error {
	err := r.withCallContext(ctx, func(ctx context.Context) error { return r.Instances.Add(ctx, *record) })
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Creating instance", "instance", record.ID, "reason", a.reason)
	r.Metrics.created.WithLabelValues(a.reason).Inc()
	return nil
}

// createRecorded creates an instance at the provider that already has a record.
func (r *reconciliation) createRecorded(ctx context.Context, a action) error {
	i, found := r.Instances.Get(a.id)
	if !found {
		return nil
	}
	do := func() error {
		err := r.createInPools(ctx, a, &i.Record)
		r.recordAttempt(&i)
		return err
	}
	if i.OnDemand {
		return r.createOnDemand(&i, do)
	}
	return r.createManaged(do)
}

// createInPools creates an instance in the first subnet with capacity.
func (r *reconciliation) createInPools(ctx context.Context, a action, record *instance.Record) error {
	if provision.UsesCandidates(r.group, record) {
		return r.createCandidate(ctx, a, record, time.Now())
	}
	// An on-demand instance may have its own pool. The record may be older than the
	// configuration from which the instance is created.
	created := *record
	created.InfraConfigHash = r.group.InfraConfigHash
	record = &created
	group, err := provision.Effective(r.config, r.group, record)
	if err != nil {
		return r.failed(record.ID, err)
	}
	subnet, err := r.subnet(ctx, group.SubnetPools)
	if err != nil {
		return r.failed(record.ID, err)
	}
	return r.failed(record.ID, r.createInSubnet(ctx, record, subnet))
}

// recordAttempt records an attempt if the provider does not list the instance
// afterwards. After the last attempt it requests another reconciliation at once,
// which gives the instance up.
func (r *reconciliation) recordAttempt(i *instance.Instance) {
	if _, known := r.Provider.Get(i.ID); known {
		return
	}
	now := time.Now()
	r.attempts.set(i.ID, now)
	if registrationTimedOut(i, r.config.Shard.GarbageCollection.RegistrationTimeout, now) {
		r.outcome.more = true
	}
}

// createManaged creates an instance with the group's own type and pools. After
// a failure it skips the others until the next reconciliation.
func (r *reconciliation) createManaged(do func() error) error {
	if r.createFailed {
		return nil
	}
	r.createFailed = true // even if do panics
	err := r.rateLimited(do)
	r.createFailed = err != nil
	if errors.Is(err, errNotBetter) {
		// The next plan finds that the instance has to stay.
		r.outcome.within(time.Second)
		return nil
	}
	if err != nil {
		r.Shortfalls.attempted(r.group, r.Instances.List(r.key), err)
	}
	return err
}

// rateLimited calls do unless this reconciliation has created enough instances
// or the rate limit applies. It then schedules the next reconciliation.
// Failures do not count: their retries would come first, at once, and starve
// the others.
func (r *reconciliation) rateLimited(do func() error) error {
	if r.created == maxCreations {
		r.outcome.more = true
		return nil
	}
	done, wait := r.createLimiter.begin(r.config.Shard.CreateRateLimit, time.Now())
	if wait > 0 {
		r.outcome.within(wait)
		return nil
	}
	succeeded := false
	defer func() { done(time.Now(), succeeded) }() // even if do panics
	err := do()
	if succeeded = err == nil; succeeded {
		r.created++
	}
	return err
}

// createInSubnet creates an instance at the provider.
func (r *reconciliation) createInSubnet(ctx context.Context, record *instance.Record, subnet string) error {
	spec, err := r.spec(ctx, record, subnet)
	if err != nil {
		return err
	}
	err = r.call(ctx, callCreate, func(ctx context.Context) error { return r.Provider.Create(ctx, spec) })
	if err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Created instance at the provider", "instance", record.ID, "type", spec.Type.Name, "subnet", subnet)
	if _, known := r.Provider.Get(record.ID); known {
		// The instance that the new instance replaces can be deleted.
		r.outcome.more = true
	} else {
		r.outcome.within(maxBackoff)
	}
	return nil
}

func (r *reconciliation) spec(ctx context.Context, record *instance.Record, subnet string) (spec provider.Spec, err error) {
	err = r.withCallContext(ctx, func(ctx context.Context) error {
		spec, err = r.Specs.Spec(ctx, r.group, record, subnet)
		return err
	})
	return spec, err
}

// subnet returns the first subnet with capacity, in the listed order of pools
// and subnets (docs/server.md#groups).
func (r *reconciliation) subnet(ctx context.Context, pools []string) (string, error) {
	// The capacity of a subnet may be unknown. That matters only if no other subnet has
	// capacity.
	var unknown error
	for _, pool := range pools {
		for _, subnet := range r.config.Shard.SubnetPools[pool] {
			var capacity int
			err := r.call(ctx, callCapacity, func(ctx context.Context) (err error) {
				capacity, err = r.Provider.Capacity(ctx, subnet)
				return err
			})
			if err != nil && unknown == nil {
				unknown = fmt.Errorf("read the capacity of subnet %s: %w", subnet, err)
			}
			if err == nil && capacity > 0 {
				return subnet, nil
			}
		}
	}
	if unknown != nil {
		return "", unknown
	}
	if len(pools) == 0 {
		return "", errors.New("the group has no subnet pool")
	}
	return "", provider.OutOfCapacity("no subnet of pool %s has capacity left", strings.Join(pools, ", "))
}

// failed reports that an instance could not be created, unless err is nil. The id is empty if there is
// no record.
func (r *reconciliation) failed(id string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("create an instance: %w", err)
	r.Failed(r.key, id, err)
	return err
}

// attempts contains, by instance id, when this server last tried to create an
// instance that the provider did not list afterwards. Entries are removed
// together with the instance. A new leader starts without attempts, and so
// tries once itself before it gives up an instance that it finds.
type attempts struct {
	mu   sync.Mutex
	last map[string]time.Time
	// candidates has, by instance id, the hash of the candidate that was requested last, "" if the
	// request was certainly rejected.
	candidates map[string]string
}

// candidate returns the hash of the candidate that was requested for an instance and may exist, and
// false if this server has requested none.
func (a *attempts) candidate(id string) (hash string, requested bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	hash, requested = a.candidates[id]
	return hash, requested
}

func (a *attempts) setCandidate(id, hash string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.candidates == nil {
		a.candidates = map[string]string{}
	}
	a.candidates[id] = hash
}

// of returns the zero time for an instance without an attempt.
func (a *attempts) of(id string) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last[id]
}

func (a *attempts) set(id string, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last == nil {
		a.last = map[string]time.Time{}
	}
	a.last[id] = at
}

func (a *attempts) remove(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.last, id)
	delete(a.candidates, id)
}

// createLimiter enforces a minimum gap between two successful creations, across
// all groups. Callers never block: they learn when to try again. It is not a
// token bucket, because a failed creation must not use up the slot, and the gap
// counts from the end of a creation.
type createLimiter struct {
	mu sync.Mutex
	// inProgress is true during a creation.
	inProgress bool
	last       time.Time
}

// begin returns zero when an instance may be created now. The caller must then
// call done with the time at which the creation finished and whether it
// succeeded. Without a gap, creations may run concurrently. Otherwise wait is
// when to try again.
func (l *createLimiter) begin(gap time.Duration, now time.Time) (done func(at time.Time, succeeded bool), wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if gap <= 0 {
		return func(time.Time, bool) {}, 0
	}
	if l.inProgress {
		return nil, gap
	}
	if next := l.last.Add(gap); now.Before(next) {
		return nil, next.Sub(now)
	}
	l.inProgress = true
	return l.done, 0
}

func (l *createLimiter) done(at time.Time, succeeded bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inProgress = false
	if succeeded {
		l.last = at
	}
}

// createOnDemand calls do for an instance, unless an instance like it has failed a moment
// ago. The last attempt, after which the instance is given up, does not wait.
func (r *reconciliation) createOnDemand(i *instance.Instance, do func() error) error {
	kind, now := kindOf(&i.Record), time.Now()
	timeout := r.config.Shard.GarbageCollection.RegistrationTimeout
	last := timeout > 0 && !now.Before(i.CreatedAt.Add(timeout))
	if wait := r.onDemandBackoff.wait(kind, now); wait > 0 && !last {
		r.outcome.within(wait)
		return nil
	}
	// Each kind has its own type and pool, so a failure of one kind does not affect others.
	return r.rateLimited(func() error {
		err := do()
		r.onDemandBackoff.done(kind, time.Now(), err)
		return err
	})
}
