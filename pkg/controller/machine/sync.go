// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/shard"
)

// sync does one step. What it writes wakes the machine for the next.
func (c *Controller) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	machine, err := c.machineLister.Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read machine %s from the cache: %w", key, err)
	}
	if !machine.DeletionTimestamp.IsZero() && !held(machine) {
		// What keeps it is somebody else's.
		return 0, nil
	}
	if !c.writes.Seen(key) {
		return staleRetry, nil
	}
	seen, err := c.observe(ctx, machine)
	if err != nil {
		return 0, err
	}
	recalled := c.remember(key, machine.UID)
	if seen.paused != "" || seen.notice != nil && seen.notice.State == shard.Deleted {
		// An end is announced once, and the cache forgets it after a while. That may
		// be before it could be acted on.
		recalled.verified = unverified
	}
	if seen.paused != "" {
		// What is announced meanwhile may be forgotten when it goes on.
		recalled.verified = 0
	}
	decided := plan(seen, *recalled)
	if decided.step != end {
		// Only a wait without an interruption counts.
		recalled.awaited = time.Time{}
	}
	done := c.carryOut(ctx, seen, decided, recalled)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if done.released {
		return 0, done.err
	}
	wait, err := c.report(ctx, seen, done, recalled)
	return shortest(wait, done.wait), errors.Join(done.err, err)
}

// observe reads the caches.
func (c *Controller) observe(ctx context.Context, machine *v1beta1.NstanceMachine) (observation, error) {
	seen := observation{machine: machine, now: c.clock.Now()}
	var err error
	if seen.owner, seen.orphan, err = c.owner(ctx, machine); err != nil {
		return observation{}, err
	}
	seen.cluster, err = c.clusterLister.Get(c.clusterName)
	if apierrors.IsNotFound(err) {
		seen.cluster = nil
	} else if err != nil {
		return observation{}, fmt.Errorf("read Cluster %s from the cache: %w", c.key(c.clusterName), err)
	}
	seen.paused = controller.PausedBy(seen.cluster, machine)
	if seen.paused == "" && seen.owner != nil {
		seen.paused = controller.PausedBy(nil, seen.owner)
	}
	id := shardOf(machine)
	if id == "" {
		return seen, nil
	}
	seen.configured = c.shards.Has(id)
	seen.reachable, seen.lost = c.groups.Reachable(id)
	if group, ok := c.groups.Get(id, string(machine.Spec.GroupRef.Name)); ok {
		seen.etag = group.ETag
	}
	// The session comes before the notice, and both before the shard is asked: what
	// is announced in between is seen now or wakes the machine again.
	seen.session = c.notices.Session(id)
	if poolMember(machine) {
		seen.listed, seen.missing = c.listing(id, string(machine.Spec.GroupRef.Name)).find(machine.Name)
	}
	if instance := instanceOf(machine); instance != "" {
		if notice, ok := c.notices.Get(id, instance); ok {
			seen.notice = &notice
		}
		seen.drain.blocked, seen.drain.message, seen.drain.running = c.drains.OfInstance(id, instance)
	}
	return seen, nil
}

// outcome is what came of a step.
type outcome struct {
	// shard is where the instance is to be made, when that was decided now.
	shard string
	// id is that of an instance that was ordered now.
	id string
	// instance is what the shard told of it, nil for nothing new.
	instance *shard.Instance
	// lost: the shard does not know the instance.
	lost bool
	// trouble is why the next step cannot be done.
	trouble *trouble
	// wait is when to look again.
	wait time.Duration
	// released: the machine is gone, or about to be.
	released bool
	err      error
}

func (c *Controller) carryOut(ctx context.Context, seen observation, decided decision, recalled *memory) outcome {
	switch decided.step {
	case claim:
		chosen, wrong := c.place(seen)
		return outcome{shard: chosen, trouble: wrong}
	case order:
		return c.order(ctx, seen, recalled)
	case hear:
		recalled.asking = pace{}
		return outcome{instance: seen.listed}
	case ask:
		return c.ask(ctx, seen, recalled)
	case end:
		return c.end(ctx, seen, recalled)
	case release:
		return outcome{released: true, err: c.release(ctx, seen.machine)}
	case removeOwner:
		return outcome{err: c.removeOwner(ctx, seen.owner)}
	case discard:
		return outcome{released: true, err: c.discard(ctx, seen.machine)}
	default:
		return outcome{trouble: decided.trouble, wait: decided.wait}
	}
}

// order asks the shard for the instance, be it to have it or to end it.
func (c *Controller) order(ctx context.Context, seen observation, recalled *memory) outcome {
	machine := seen.machine
	if recalled.id != "" {
		return outcome{id: recalled.id}
	}
	instance, err := c.shards.CreateInstance(ctx, machine.Status.Shard, machine.Status.RequestID, orderOf(machine))
	switch {
	case err == nil && instance.ID == "":
		err = fmt.Errorf("shard %q has ordered an instance and gave no id", machine.Status.Shard)
		return outcome{err: err, trouble: &trouble{v1beta1.ReasonInstanceRefused, err.Error()}}
	case err == nil:
		klog.FromContext(ctx).Info("Instance ordered", "shard", machine.Status.Shard, "instance", instance.ID)
		recalled.id = instance.ID
		return outcome{id: instance.ID}
	case shard.IsDeclined(err) && !machine.DeletionTimestamp.IsZero():
		// Nothing was made: the shard would have told the id.
		return outcome{released: true, err: c.release(ctx, machine)}
	case shard.IsRejected(err) && machine.DeletionTimestamp.IsZero():
		// A refusal is remembered instead of returned: trying again would change
		// nothing.
		recalled.refused = &refusal{etag: seen.etag, until: seen.now.Add(refusedRetry), message: shard.Message(err)}
		return outcome{trouble: &trouble{v1beta1.ReasonInstanceRefused, shard.Message(err)}, wait: refusedRetry}
	default:
		return outcome{err: err, trouble: failed(err, v1beta1.ReasonInstanceRefused)}
	}
}

// ask asks the shard what the instance does.
func (c *Controller) ask(ctx context.Context, seen observation, recalled *memory) outcome {
	machine := seen.machine
	instance, err := c.shards.Instance(ctx, shardOf(machine), instanceOf(machine))
	if err != nil && !shard.IsNotFound(err) {
		done := outcome{err: err}
		if !ready(machine) {
			done.trouble = failed(err, v1beta1.ReasonProvisioning)
		}
		return done
	}
	recalled.verified = seen.session
	if err != nil {
		return outcome{lost: true}
	}
	if runs(&instance) && !seen.missing {
		recalled.asking = pace{}
		return outcome{instance: &instance}
	}
	recalled.asking.asked(seen.now, lastAsk)
	return outcome{instance: &instance, wait: recalled.asking.delay}
}

// end has the shard end the instance, again and again until it is gone.
func (c *Controller) end(ctx context.Context, seen observation, recalled *memory) outcome {
	machine := seen.machine
	pending, err := c.awaitPool(ctx, seen, recalled)
	if err != nil {
		return outcome{err: err}
	}
	if pending != "" {
		return outcome{trouble: &trouble{v1beta1.ReasonDeleting, pending}, wait: poolRetry}
	}
	gone, err := c.shards.DeleteInstance(ctx, shardOf(machine), instanceOf(machine))
	switch {
	case err != nil:
		return outcome{err: err, trouble: failed(err, v1beta1.ReasonDeleting)}
	case gone:
		klog.FromContext(ctx).Info("Instance ended", "shard", shardOf(machine), "instance", instanceOf(machine))
		return outcome{released: true, err: c.release(ctx, machine)}
	default:
		recalled.ending.asked(seen.now, lastEnd)
		return outcome{wait: recalled.ending.delay}
	}
}

// orderOf is what the instance is to be made of.
func orderOf(machine *v1beta1.NstanceMachine) shard.InstanceOrder {
	return shard.InstanceOrder{
		Group:        string(machine.Spec.GroupRef.Name),
		InstanceType: machine.Spec.InstanceType,
		Vars:         machine.Spec.Vars,
	}
}

// failed is the trouble of a call that failed, reason when it was answered.
func failed(err error, reason string) *trouble {
	if shard.IsUnreachable(err) {
		reason = v1beta1.ReasonShardUnreachable
	}
	return &trouble{reason, shard.Message(err)}
}

// shortest is the shortest of the waits that are not zero.
func shortest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
