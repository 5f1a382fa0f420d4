// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// maxCreations is the maximum number of instances that one reconciliation
// creates. A group that grows by hundreds is observed again in between: its
// size may have changed, and drains may be over.
const maxCreations = 16

// reconciliation is one reconciliation of one group.
type reconciliation struct {
	*Reconciler
	key    instance.GroupKey
	group  *groups.Group
	config *config.Config
	// outcome is the result for the queue.
	outcome outcome
	// createFailed is true once the creation of a managed instance has failed.
	// The others would fail in the same way.
	createFailed bool
	// replaceable are the ids of the instances that leave for new ones, in order. It is empty without
	// candidates.
	replaceable []string
	// created is how many instances the provider has accepted.
	created int
	// deleted is true if the group was deleted.
	deleted bool
}

// outcome is when to reconcile a group again if nothing changes before.
type outcome struct {
	// acted is true when an action was done or tried.
	acted bool
	// reordered is true when the deletion order or the progress of a rotation has changed with the time,
	// or the capacity for candidates.
	reordered bool
	// more is true when there may be another action at once.
	more bool
	// after is when the next action is due. Zero means never.
	after time.Duration
}

// within limits after to d.
func (o *outcome) within(d time.Duration) {
	if o.after == 0 || d < o.after {
		o.after = d
	}
}

// reconcile brings one group one step closer to its desired state. After an
// error it continues with the other actions: one instance that cannot be
// created must not delay the others.
func (r *Reconciler) reconcile(ctx context.Context, key instance.GroupKey) (outcome, error) {
	current := &reconciliation{Reconciler: r, key: key, config: r.Groups.Config()}
	now := time.Now()
	observed := current.observe()
	current.observeStock(&observed, now)
	observed.deregisterUntil = current.deregistrations(observed.instances, observed.drainTimeout, now)
	if wait := r.confirmations.waitFor(current.group, observed.instances, now); wait > 0 {
		observed.waiting = true
		current.outcome.within(wait)
	}
	current.reportEnds(ctx, observed.instances)
	current.removeUserdata(observed.instances)
	observed.stuck = current.findStuck(ctx, observed.instances, now)
	restarting, wait := r.restarts.update(key, observed.instances, current.config.Shard.RestartGrace, now)
	if observed.restarting = restarting; wait > 0 {
		current.outcome.within(wait)
	}
	observed.kept = current.keepLost(ctx, &observed, now)
	if len(observed.choices) > 0 {
		current.replaceable = newPlanner(observed, now).replaceable
	}
	actions, next := plan(observed, now)
	if !next.IsZero() {
		current.outcome.within(next.Sub(now))
	}
	current.outcome.acted = len(actions) > 0
	current.outcome.reordered = current.outcome.reordered || current.DeletionOrders.outdated(current.group, observed.instances, now)
	var errs []error
	for len(actions) > 0 && ctx.Err() == nil {
		n := independent(actions)
		errs = append(errs, current.actTogether(ctx, actions[:n], now)...)
		actions = actions[n:]
	}
	return current.outcome, errors.Join(errs...)
}

// recordWriters is how many records of one group are written at the same time: a write to an object
// storage takes tens of milliseconds, and a group may have thousands of new instances.
const recordWriters = 8

// independent returns how many of the first actions may be done at the same time: those that only
// write the records of different instances. Any other action is done alone, because the next one may
// depend on its result.
func independent(actions []action) int {
	n := 0
	for n < len(actions) && actions[n].verb == setProviderID {
		n++
	}
	return max(n, 1)
}

// actTogether carries out independent actions, and returns their errors in the order of the actions.
func (r *reconciliation) actTogether(ctx context.Context, actions []action, now time.Time) []error {
	errs := make([]error, len(actions))
	var acting errgroup.Group
	acting.SetLimit(recordWriters)
	for n, a := range actions {
		acting.Go(func() error {
			if ctx.Err() == nil {
				errs[n] = r.protect(ctx, func() error { return r.act(ctx, a, now) })
			}
			if errors.Is(errs[n], errPanic) {
				// It may have passed by the code that reports errors to operators.
				r.Failed(r.key, a.id, errs[n])
			}
			return nil
		})
	}
	_ = acting.Wait()
	return errs
}

// removeUserdata lets the provider remove the userdata of instances whose agents have registered:
// users of the cloud can read it, and no instance reads it a second time.
func (r *reconciliation) removeUserdata(instances []instance.Instance) {
	remover, ok := r.Provider.(provider.UserdataRemover)
	if !ok {
		return
	}
	for _, i := range instances {
		if i.Registration != nil && i.State == instance.Running && i.Agent.State == instance.AgentReporting {
			remover.RemoveUserdata(i.ID)
		}
	}
}

// observe returns the input of a plan.
func (r *reconciliation) observe() state {
	// The order of these calls matters. An adopted instance is seen only with the mark of
	// its group, or with the settings that an operator has confirmed since.
	instances := r.Instances.List(r.key)
	deleted, unconfirmed := r.Groups.Deleted(r.key), r.Groups.Unconfirmed(r.key)
	group, found := r.Groups.Get(r.key)
	if !found {
		r.Shortfalls.remove(r.key)
		r.DeletionOrders.remove(r.key)
		r.Stock.Remove(r.key)
		group = &groups.Group{Key: r.key, DrainTimeout: r.config.Shard.DefaultDrainTimeout}
		if timeout, own := r.Groups.DeletedDrainTimeout(r.key); own {
			group.DrainTimeout = timeout
		}
	}
	r.group, r.deleted = group, !found && deleted
	s := state{
		deleted:             r.deleted,
		lost:                !found && !deleted,
		unconfirmed:         unconfirmed,
		size:                int(group.Size),
		removeFirst:         map[string]bool{},
		infraConfigHash:     group.InfraConfigHash,
		drainTimeout:        group.DrainTimeout,
		keepUnhealthy:       group.KeepUnhealthy,
		expiry:              r.config.Shard.Expiry,
		rotation:            group.Rotation,
		replace:             setOf(group.Replace),
		registrationTimeout: r.config.Shard.GarbageCollection.RegistrationTimeout,
		instances:           instances,
		attempted:           map[string]time.Time{},
		providerIDs:         map[string]string{},
	}
	s.createAfter = r.failures.createAfter(group, instances)
	for _, id := range group.RemoveFirst {
		s.removeFirst[id] = true
		i, found := r.Instances.Get(id)
		if found && !i.DeletedAt.IsZero() && i.Key() == r.key && !i.OnDemand && isReplaced(&i) {
			s.replaced = true
		}
	}
	for n := range s.instances {
		switch i := &s.instances[n]; {
		case isUncreated(i):
			s.attempted[i.ID] = r.attempts.of(i.ID)
		case i.ProviderID == "" && i.Known:
			if vm, known := r.Provider.Get(i.ID); known && vm.ProviderID != "" {
				s.providerIDs[i.ID] = vm.ProviderID
			}
		}
	}
	return s
}

// act carries out one action. Errors of creating and deleting instances are
// also reported to operators.
func (r *reconciliation) act(ctx context.Context, a action, now time.Time) error {
	switch a.verb {
	case setProviderID:
		return r.withCallContext(ctx, func(ctx context.Context) error {
			return r.Instances.SetProviderID(ctx, a.id, a.providerID)
		})
	case removeRecord:
		return r.removeRecord(ctx, a)
	case drain:
		return r.drain(ctx, a, now)
	case terminate, terminateAgain:
		return r.terminate(ctx, a)
	case create:
		return r.create(ctx, a, now)
	case createRecorded:
		return r.createRecorded(ctx, a)
	default:
		return fmt.Errorf("unknown action %q", a.verb)
	}
}

// drain begins the drain of an instance.
func (r *reconciliation) drain(ctx context.Context, a action, now time.Time) error {
	before, _ := r.Instances.Get(a.id)
	err := r.withCallContext(ctx, func(ctx context.Context) error {
		return r.Instances.StartDrain(ctx, a.id, instance.Drain{
			Reason: a.reason, StartedAt: now, DeleteAt: a.deleteAt, Request: r.causeOf(&before, a.reason),
		})
	})
	if err != nil {
		return err
	}
	r.log(ctx, audit.DrainInstance, &before, a, "draining")
	r.Metrics.drainsStarted.WithLabelValues(a.reason).Inc()
	r.notify(a.id, r.Events.Draining)
	r.outcome.more = true
	return nil
}

// terminate deletes an instance at the provider. It stores the decision first,
// so that a lost request is repeated.
func (r *reconciliation) terminate(ctx context.Context, a action) error {
	before, _ := r.Instances.Get(a.id)
	if a.verb == terminate {
		err := r.withCallContext(ctx, func(ctx context.Context) error {
			return r.Instances.SetDeleting(ctx, a.id, a.reason)
		})
		if err != nil {
			return err
		}
		r.Metrics.drained(&before)
		if a.reason == instance.ReasonUnregistered && before.Known {
			r.neverUp(ctx, &before)
		}
	}
	first := r.logged.add(a.id)
	if first && r.mayBeTarget(&before) {
		r.Metrics.terminatedTargets.Inc()
	}
	// A deletion that a client requested is decided when the request is stored.
	if first && (a.verb == terminate || a.reason == instance.ReasonRequested) {
		r.log(ctx, audit.TerminateInstance, &before, a, "terminated")
	}
	// The decision may have been made elsewhere without an event. Operators ignore repeated
	// events.
	r.notify(a.id, r.Events.Deleting)
	err := r.call(ctx, callDelete, func(ctx context.Context) error { return r.Provider.Delete(ctx, a.id) })
	if err != nil {
		err = fmt.Errorf("delete instance %s: %w", a.id, err)
		r.Failed(r.key, a.id, err)
		return err
	}
	if before.Known {
		// The provider reports when the instance is deleted. The request is repeated if the
		// instance is not even terminating by then.
		r.outcome.within(maxBackoff)
	} else {
		r.outcome.more = true
	}
	return nil
}

// removeRecord removes the record of a deleted instance.
func (r *reconciliation) removeRecord(ctx context.Context, a action) error {
	i, found := r.Instances.Get(a.id)
	if !found {
		return nil
	}
	err := r.withCallContext(ctx, func(ctx context.Context) error { return r.Instances.Remove(ctx, a.id) })
	if err != nil {
		return err
	}
	r.attempts.remove(a.id)
	r.requests.remove(a.id)
	r.logged.remove(a.id)
	klog.FromContext(ctx).V(2).Info("Deleted instance", "instance", a.id, "reason", i.DeleteReason,
		audit.KeyRequestID, r.causeOf(&i, i.DeleteReason).ID)
	r.Metrics.deleted.WithLabelValues(i.DeleteReason).Inc()
	r.Events.Deleted(i)
	r.outcome.more = true
	return nil
}

// notify calls handle with the current state of an instance.
func (r *reconciliation) notify(id string, handle func(instance.Instance)) {
	if i, found := r.Instances.Get(id); found {
		handle(i)
	}
}

// withCallContext makes one call to the storage or the provider.
func (r *Reconciler) withCallContext(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := r.CallContext(ctx)
	defer cancel()
	return do(ctx)
}

// call makes one call to the provider and counts it.
func (r *Reconciler) call(ctx context.Context, operation string, do func(context.Context) error) error {
	start := time.Now()
	err := r.withCallContext(ctx, do)
	r.Metrics.called(operation, time.Since(start), err)
	return err
}
