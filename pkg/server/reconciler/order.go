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
	"nstance.dev/operator/pkg/server/provision"
	"nstance.dev/operator/pkg/server/puidv7"
)

// create makes the record of a new managed instance and orders it. Nothing is
// recorded while the instance could not be ordered: records that wait would
// only grow old.
func (r *round) create(ctx context.Context, a action, now time.Time) error {
	return r.orderManaged(func() error {
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
		err = r.bounded(ctx, func(ctx context.Context) error { return r.Instances.Add(ctx, record) })
		if err != nil {
			return r.failed("", err)
		}
		klog.FromContext(ctx).Info("Creating instance", "instance", record.ID, "reason", a.reason)
		r.Metrics.created.WithLabelValues(a.reason).Inc()
		return r.orderIn(ctx, &record, subnet)
	})
}

// order orders an instance that has a record.
func (r *round) order(ctx context.Context, a action) error {
	i, found := r.Instances.Get(a.id)
	if !found {
		return nil
	}
	do := func() error {
		err := r.orderRecorded(ctx, &i.Record)
		r.tried(&i)
		return err
	}
	if i.OnDemand {
		// Each has its own type and pool: that one cannot be had says nothing of
		// the next.
		return r.paced(do)
	}
	return r.orderManaged(do)
}

func (r *round) orderRecorded(ctx context.Context, record *instance.Record) error {
	// An on-demand instance may have a pool of its own.
	group, err := provision.Effective(r.config, r.group, record)
	if err != nil {
		return r.failed(record.ID, err)
	}
	subnet, err := r.subnet(ctx, group.SubnetPools)
	if err != nil {
		return r.failed(record.ID, err)
	}
	return r.orderIn(ctx, record, subnet)
}

// tried keeps in mind that an instance was ordered, if the provider does not know
// it all the same. If that was the last attempt, it is given up at once.
func (r *round) tried(i *instance.Instance) {
	if _, known := r.Provider.Get(i.ID); known {
		return
	}
	now := time.Now()
	r.attempts.note(i.ID, now)
	if unregistered(i, r.config.Shard.GarbageCollection.RegistrationTimeout, now) {
		r.outcome.more = true
	}
}

// orderManaged orders an instance of the group's own type and pools. When one
// of them cannot be had, the provider is not asked for the others in this round.
func (r *round) orderManaged(do func() error) error {
	if r.full {
		return nil
	}
	err := r.paced(do)
	r.full = err != nil
	return err
}

// paced calls do unless this round has ordered enough, or instances have to be
// ordered more slowly. Then the group is looked at again when there may be the
// next order. Orders that fail do not count: they would be the first to be tried
// again, at once, and keep those after them waiting.
func (r *round) paced(do func() error) error {
	if r.taken == ordersPerRound {
		r.outcome.more = true
		return nil
	}
	done, wait := r.pace.begin(r.config.Shard.CreateRateLimit, time.Now())
	if wait > 0 {
		r.outcome.within(wait)
		return nil
	}
	err := do()
	done(time.Now(), err == nil)
	if err == nil {
		r.taken++
	}
	return err
}

// orderIn asks the provider for an instance.
func (r *round) orderIn(ctx context.Context, record *instance.Record, subnet string) error {
	spec, err := r.spec(ctx, record, subnet)
	if err != nil {
		return r.failed(record.ID, err)
	}
	err = r.call(ctx, callCreate, func(ctx context.Context) error { return r.Provider.Create(ctx, spec) })
	if err != nil {
		return r.failed(record.ID, err)
	}
	klog.FromContext(ctx).V(2).Info("Ordered instance", "instance", record.ID, "type", spec.Type.Name, "subnet", subnet)
	if _, known := r.Provider.Get(record.ID); known {
		// What it replaces can go.
		r.outcome.more = true
	} else {
		r.outcome.within(retryAtMost)
	}
	return nil
}

func (r *round) spec(ctx context.Context, record *instance.Record, subnet string) (spec instance.Spec, err error) {
	err = r.bounded(ctx, func(ctx context.Context) error {
		spec, err = r.Specs.Spec(ctx, r.group, record, subnet)
		return err
	})
	return spec, err
}

// subnet returns the first subnet of the first pool that has room, in the order
// in which they are listed (server document).
func (r *round) subnet(ctx context.Context, pools []string) (string, error) {
	for _, pool := range pools {
		for _, subnet := range r.config.Shard.SubnetPools[pool] {
			var room int
			err := r.call(ctx, callCapacity, func(ctx context.Context) (err error) {
				room, err = r.Provider.Capacity(ctx, subnet)
				return err
			})
			if err != nil {
				return "", fmt.Errorf("asking for the room in subnet %s: %w", subnet, err)
			}
			if room > 0 {
				return subnet, nil
			}
		}
	}
	if len(pools) == 0 {
		return "", errors.New("the group has no subnet pool")
	}
	return "", fmt.Errorf("no subnet of pool %s has room", strings.Join(pools, ", "))
}

// failed tells that an instance could not be made. The id is empty when there is
// not even a record.
func (r *round) failed(id string, err error) error {
	err = fmt.Errorf("creating an instance: %w", err)
	r.Failed(r.key, id, err)
	return err
}
