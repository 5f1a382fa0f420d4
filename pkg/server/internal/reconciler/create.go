// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
		subnet, err := r.subnet(ctx, r.group.SubnetPools)
		if err != nil {
			return r.failed("", err)
		}
		id, err := puidv7.New(r.group.Kind)
		if err != nil {
			return r.failed("", err)
		}
		record := instance.Record{
			ID:              id.String(),
			Tenant:          r.key.Tenant,
			Group:           r.key.Group,
			InfraConfigHash: r.group.InfraConfigHash,
			CreatedAt:       now,
		}
		err = r.withCallContext(ctx, func(ctx context.Context) error { return r.Instances.Add(ctx, record) })
		if err != nil {
			return r.failed("", err)
		}
		klog.FromContext(ctx).Info("Creating instance", "instance", record.ID, "reason", a.reason)
		r.Metrics.created.WithLabelValues(a.reason).Inc()
		return r.createInSubnet(ctx, &record, subnet)
	})
}

// createRecorded creates an instance at the provider that already has a record.
func (r *reconciliation) createRecorded(ctx context.Context, a action) error {
	i, found := r.Instances.Get(a.id)
	if !found {
		return nil
	}
	do := func() error {
		err := r.createInPools(ctx, &i.Record)
		r.recordAttempt(&i)
		return err
	}
	if i.OnDemand {
		return r.createOnDemand(&i, do)
	}
	return r.createManaged(do)
}

// createInPools creates an instance in the first subnet with capacity.
func (r *reconciliation) createInPools(ctx context.Context, record *instance.Record) error {
	// An on-demand instance may have its own pool.
	// The record may be older than the configuration from which the instance is created.
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
	return r.createInSubnet(ctx, record, subnet)
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
	r.createFailed = true // also if do panics
	err := r.rateLimited(do)
	r.createFailed = err != nil
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
	defer func() { done(time.Now(), succeeded) }() // also if do panics
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
		return r.failed(record.ID, err)
	}
	err = r.call(ctx, callCreate, func(ctx context.Context) error { return r.Provider.Create(ctx, spec) })
	if err != nil {
		return r.failed(record.ID, err)
	}
	klog.FromContext(ctx).V(2).Info("Created instance at the provider", "instance", record.ID, "type", spec.Type.Name, "subnet", subnet)
	if _, known := r.Provider.Get(record.ID); known {
		// The instance that it replaces can be deleted.
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
	// The capacity of one subnet may be unknown. It matters only if no other has any.
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

// failed reports that an instance could not be created. The id is empty when
// there is no record.
func (r *reconciliation) failed(id string, err error) error {
	err = fmt.Errorf("create an instance: %w", err)
	r.Failed(r.key, id, err)
	return err
}
