// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

// ordersPerRound is how many orders the provider is given in one round. A group
// that grows by hundreds is looked at in between: it may have another size by
// then, and drains may be over.
const ordersPerRound = 16

// round is one look at one group, and what is done about it.
type round struct {
	*Reconciler
	key    instance.GroupKey
	group  *groups.Group
	config *config.Config
	// outcome is what the queue has to know.
	outcome outcome
	// full is true once the order of a managed instance has failed: the others
	// are like it.
	full bool
	// taken is how many orders the provider has taken.
	taken int
}

// outcome says when to look at a group again if nothing happens before.
type outcome struct {
	// acted is true when something was done, or tried.
	acted bool
	// more is true when there may be something to do at once.
	more bool
	// after is when something falls due. Zero means never.
	after time.Duration
}

// within makes after d at most.
func (o *outcome) within(d time.Duration) {
	if o.after == 0 || d < o.after {
		o.after = d
	}
}

// reconcile takes one group a step nearer to what is wanted. After an error it
// goes on with what else there is to do: one instance that cannot be had is no
// reason to let another one wait.
func (r *Reconciler) reconcile(ctx context.Context, key instance.GroupKey) (outcome, error) {
	current := &round{Reconciler: r, key: key, config: r.Groups.Config()}
	now := time.Now()
	actions, wake := plan(current.observe(), now)
	if !wake.IsZero() {
		current.outcome.within(wake.Sub(now))
	}
	current.outcome.acted = len(actions) > 0
	var errs []error
	for _, a := range actions {
		if ctx.Err() != nil {
			break
		}
		if err := current.act(ctx, a, now); err != nil {
			errs = append(errs, err)
		}
	}
	return current.outcome, errors.Join(errs...)
}

// observe returns what a plan is made from.
func (r *round) observe() state {
	group, found := r.Groups.Get(r.key)
	if !found {
		// What its drain timeout was has gone with it. Its instances drain as
		// long as those of a group that names none.
		group = &groups.Group{Key: r.key, DrainTimeout: r.config.Shard.DefaultDrainTimeout}
	}
	r.group = group
	s := state{
		deleted:             !found,
		size:                int(group.Size),
		removeFirst:         map[string]bool{},
		infraConfigHash:     group.InfraConfigHash,
		drainTimeout:        group.DrainTimeout,
		expiry:              r.config.Shard.Expiry,
		registrationTimeout: r.config.Shard.GarbageCollection.RegistrationTimeout,
		instances:           r.Instances.List(r.key),
		tried:               map[string]time.Time{},
		providerIDs:         map[string]string{},
	}
	for _, id := range group.RemoveFirst {
		s.removeFirst[id] = true
		i, found := r.Instances.Get(id)
		if found && !i.DeletedAt.IsZero() && i.Key() == r.key && !i.OnDemand && isReplaced(&i) {
			s.replaced = true
		}
	}
	for n := range s.instances {
		switch i := &s.instances[n]; {
		case unordered(i):
			s.tried[i.ID] = r.attempts.of(i.ID)
		case i.ProviderID == "" && i.Known:
			if vm, known := r.Provider.Get(i.ID); known && vm.ProviderID != "" {
				s.providerIDs[i.ID] = vm.ProviderID
			}
		}
	}
	return s
}

// act carries out one action. What fails and has to do with making or ending
// instances is told to whoever watches.
func (r *round) act(ctx context.Context, a action, now time.Time) error {
	switch a.verb {
	case confirm:
		return r.bounded(ctx, func(ctx context.Context) error {
			return r.Instances.SetProviderID(ctx, a.id, a.providerID)
		})
	case forget:
		return r.forget(ctx, a)
	case drain:
		return r.drain(ctx, a, now)
	case end, endAgain:
		return r.end(ctx, a)
	case create:
		return r.create(ctx, a, now)
	case order:
		return r.order(ctx, a)
	default:
		return fmt.Errorf("unknown action %q", a.verb)
	}
}

// drain begins the drain of an instance.
func (r *round) drain(ctx context.Context, a action, now time.Time) error {
	err := r.bounded(ctx, func(ctx context.Context) error {
		return r.Instances.StartDrain(ctx, a.id, instance.Drain{Reason: a.reason, StartedAt: now, DeleteAt: a.deleteAt})
	})
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Draining instance", "instance", a.id, "reason", a.reason, "deleteAt", a.deleteAt)
	r.Metrics.drainsStarted.WithLabelValues(a.reason).Inc()
	r.tell(a.id, r.Events.Draining)
	r.outcome.more = true
	return nil
}

// end has the provider end an instance. That it shall is noted first, so that an
// order that is lost is repeated.
func (r *round) end(ctx context.Context, a action) error {
	before, _ := r.Instances.Get(a.id)
	if a.verb == end {
		err := r.bounded(ctx, func(ctx context.Context) error {
			return r.Instances.SetDeleting(ctx, a.id, a.reason)
		})
		if err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Deleting instance", "instance", a.id, "reason", a.reason)
		r.Metrics.drained(&before)
	}
	// Who decided it may be somebody else, who has told nobody. Operators ignore
	// what they were told before.
	r.tell(a.id, r.Events.Deleting)
	err := r.call(ctx, callDelete, func(ctx context.Context) error { return r.Provider.Delete(ctx, a.id) })
	if err != nil {
		err = fmt.Errorf("deleting instance %s: %w", a.id, err)
		r.Failed(r.key, a.id, err)
		return err
	}
	if before.Known {
		// The provider tells when it is gone, and is told again if it does not
		// even say that the instance is on its way out.
		r.outcome.within(retryAtMost)
	} else {
		r.outcome.more = true
	}
	return nil
}

// forget removes the record of an instance that is gone.
func (r *round) forget(ctx context.Context, a action) error {
	i, found := r.Instances.Get(a.id)
	if !found {
		return nil
	}
	err := r.bounded(ctx, func(ctx context.Context) error { return r.Instances.Remove(ctx, a.id) })
	if err != nil {
		return err
	}
	r.attempts.drop(a.id)
	klog.FromContext(ctx).V(2).Info("Instance is gone", "instance", a.id, "reason", i.DeleteReason)
	r.Metrics.deleted.WithLabelValues(i.DeleteReason).Inc()
	r.Events.Deleted(i)
	r.outcome.more = true
	return nil
}

// tell gives an instance as it is now to somebody.
func (r *round) tell(id string, somebody func(instance.Instance)) {
	if i, found := r.Instances.Get(id); found {
		somebody(i)
	}
}

// bounded makes one call to the storage.
func (r *Reconciler) bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := r.Bound(ctx)
	defer cancel()
	return do(ctx)
}

// call makes one call to the provider.
func (r *Reconciler) call(ctx context.Context, operation string, do func(context.Context) error) error {
	begun := time.Now()
	err := r.bounded(ctx, do)
	r.Metrics.called(operation, time.Since(begun), err)
	return err
}
