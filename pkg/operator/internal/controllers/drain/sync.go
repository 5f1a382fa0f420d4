// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"errors"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// sync takes the next step of a drain.
func (c *Controller) sync(ctx context.Context, key Key) (time.Duration, error) {
	now := c.clock.Now()
	mark := c.writes.Mark()
	observed, s, err := c.observe(ctx, key, now)
	if err != nil {
		s.setFailure(err, now)
		c.reportProgress(key, s, observed, decision{})
		return 0, err
	}
	for _, node := range observed.nodes {
		if key := cache.MetaObjectToName(node); !c.writes.HadCaughtUp(mark, key) {
			return c.writes.Delay(key), nil
		}
	}
	next := plan(observed, now)
	inProgress := s != nil && !observed.acknowledged && !overdue(observed.notice, now)
	if !inProgress {
		c.stop(key)
	}
	if !inProgress || !next.step.continuesEvictions() {
		c.evictions.drop(key)
	}
	if s != nil && next.step != cordon && len(observed.nodes) == 1 && s.takeStart() {
		c.recordStart(key, observed.nodes[0], observed.notice)
	}
	err = c.act(ctx, key, s, observed, next)
	if inProgress {
		failed := err
		if failed == nil {
			failed = observed.pods.rulesErr
		}
		c.recordResult(s, next.step, failed, now)
		c.reportProgress(key, s, observed, next)
		next.until = earliest(next.until, s.failureReportAt(now))
	}
	return delayUntil(next.until, now), err
}

// observe reads the caches. The state is nil if the shard does not request a drain. It is not
// nil if there is an error.
func (c *Controller) observe(ctx context.Context, key Key, now time.Time) (observation, *state, error) {
	// Settled is read first: a notice that arrives after it must not look withdrawn.
	observed := observation{settled: c.notices.Settled(key.Shard), cordoned: c.nodesCordonedFor(key)}
	notice, ok := c.notices.Get(key.Shard, key.Instance)
	if !ok {
		return observed, nil, nil
	}
	observed.notice = &notice
	if notice.State != shard.Draining {
		return observed, nil, nil
	}
	s := c.ensureState(key, observed.notice)
	observed.hooks = hooksOf(c.rules.MachineOf(notice.ProviderID))
	observed.acknowledged, observed.expired = s.isAcknowledged(notice.Announced), s.isExpired()
	observed.nodes, observed.foreign = c.nodes.OfInstance(key.Shard, notice.ProviderID)
	if len(observed.nodes) == 0 {
		observed.notFound, observed.mismatch = c.nodeLookup.result(key)
	} else {
		// If the Node is deleted later, that needs a new lookup.
		c.nodeLookup.forget(key)
	}
	observed.outdated = len(observed.nodes) == 1 && outdated(observed.nodes[0], key, &notice)
	if len(observed.nodes) != 1 || observed.foreign != "" || observed.acknowledged || overdue(observed.notice, now) {
		return observed, s, nil
	}
	var err error
	observed.pods, err = c.observePods(ctx, s, observed.nodes[0], observed.notice, now)
	return observed, s, err
}

// act takes a step.
func (c *Controller) act(ctx context.Context, key Key, s *state, observed observation, next decision) error {
	switch next.step {
	case forget:
		c.forget(key, next.outcome)
	case checkWithdrawal:
		c.forget(key, withdrawn)
		c.shardCalls.Add(key)
	case lookUpNode:
		c.nodeLookup.request(key, observed.notice)
	case annotate:
		return c.applyCordon(ctx, observed.nodes[0], key, observed.notice)
	case cordon:
		node := observed.nodes[0]
		if err := c.applyCordon(ctx, node, key, observed.notice); err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Node cordoned", "node", node.Name, "reason", observed.notice.Reason, "deleteAt", observed.notice.DeleteAt)
		if !observed.acknowledged && !observed.expired {
			s.setCordoned()
		}
	case watchPods:
		c.startPodWatch(ctx, key, s, observed.nodes[0].Name)
	case classifyPods:
		if _, err := c.classifyPods(ctx, s, observed.nodes[0], observed.notice); err != nil {
			return err
		}
		c.queue.Add(key)
	case evict:
		c.evictions.set(key, observed.nodes[0], next.evict, observed.notice.Deadline)
	case acknowledge:
		c.shardCalls.Add(key)
	case expire:
		c.expire(ctx, key, s, observed)
		c.queue.Add(key)
	case nothing, reportAmbiguity, reportMismatch, reportForeign, awaitVolumes, awaitHook:
	}
	return nil
}

// expire reports that a drain was not finished in time.
func (c *Controller) expire(ctx context.Context, key Key, s *state, observed observation) {
	if s.setExpired() {
		c.metrics.drainFinished(s.reason, c.clock.Since(s.startedAt), timedOut)
		c.recordOutcome(ctx, key, observed.nodes, timedOut)
	}
	klog.FromContext(ctx).Error(nil, "Drain was not finished in time", "reason", observed.notice.Reason, "deleteAt", observed.notice.DeleteAt)
}

// stop stops the work on a drain, except for its evictions: the shard does not request the
// drain, has its acknowledgement, or the deadline is over.
func (c *Controller) stop(key Key) {
	c.progress.remove(key)
	c.nodeLookup.forget(key)
	if s := c.getState(key); s != nil {
		s.stopPodWatch()
	}
}

// forget removes the state of a drain.
func (c *Controller) forget(key Key, result outcome) {
	if s := c.getState(key); s != nil {
		c.removeState(key, s)
		if !s.isCounted() {
			c.metrics.drainFinished(s.reason, c.clock.Since(s.startedAt), result)
		}
	}
}

// reportProgress updates the summary of drains, and records an event when the drain
// becomes blocked. A drain that was acknowledged before and only waits for another
// acknowledgement is not part of the summary.
func (c *Controller) reportProgress(key Key, s *state, observed observation, next decision) {
	blockages := c.evictions.blockages(key)
	for _, pod := range observed.pods.stuck {
		blockages = append(blockages, newStuckPod(observed.nodes[0].Name, pod))
	}
	now := c.clock.Now()
	if since := s.setAmbiguous(next.step == reportAmbiguity, now); !since.IsZero() {
		blockages = []blockage{newAmbiguity(observed.notice.ProviderID, observed.nodes, since)}
	}
	if since := s.setForeign(next.step == reportForeign, now); !since.IsZero() {
		blockages = []blockage{newForeign(key.Instance, observed, since)}
	}
	if observed.mismatch != nil {
		blockages = []blockage{newMismatch(key.Instance, observed.notice.ProviderID, observed.mismatch)}
	}
	if failing := s.lastingFailure(now); failing.err != nil {
		blockages = append(blockages, newFailure(key.Instance, observed.nodes, failing))
	}
	if s.setBlocked(len(blockages) > 0) {
		c.recordBlockage(key, observed, blockages[0])
	}
	if !s.wasAcknowledged() {
		waiting := c.progress.waiting(key)
		switch next.step {
		case evict, awaitVolumes, awaitHook, acknowledge:
			// In other steps the Pods are not known for a moment.
			waiting = newWaiting(observed, next)
		}
		c.progress.set(key, observed.notice.Group, blockages, waiting)
	}
}

// callShard makes the call to a shard that the next step of a drain needs.
func (c *Controller) callShard(ctx context.Context, key Key) (time.Duration, error) {
	now := c.clock.Now()
	observed, s, err := c.observe(ctx, key, now)
	if err != nil {
		return 0, err
	}
	switch next := plan(observed, now); next.step {
	case acknowledge:
		return c.acknowledge(ctx, key, s, observed, next.outcome)
	case checkWithdrawal:
		return c.checkWithdrawal(ctx, key, observed)
	default:
		// The observation has changed since the sync that requested the call.
		c.queue.Add(key)
		return 0, nil
	}
}

// acknowledge confirms to the shard that the instance can be deleted. If the Node
// was drained, it lists the Pods live before.
func (c *Controller) acknowledge(ctx context.Context, key Key, s *state, observed observation, result outcome) (time.Duration, error) {
	if delay := s.acknowledgementDelay(c.clock.Now()); delay > 0 {
		return delay, nil
	}
	if result == drained || result == volumesAttached {
		if delay := observed.pods.listAfter.Sub(c.clock.Now()); delay > 0 {
			return delay, nil
		}
		remaining, err := c.classifyPods(ctx, s, observed.nodes[0], observed.notice)
		if unreadable, _ := s.readErrors(); err == nil {
			err = unreadable
		}
		if err != nil {
			s.setFailure(err, c.clock.Now())
			c.queue.AddAfter(key, blockedAfter)
			return 0, err
		}
		s.setFailure(nil, c.clock.Now())
		if remaining > 0 {
			c.queue.Add(key)
			return 0, nil
		}
	}
	s.startAcknowledgement()
	ctx, _ = audit.WithNewRequest(ctx)
	err := c.shards.AcknowledgeDrained(ctx, key.Shard, key.Instance)
	if err != nil || !s.wasAcknowledged() {
		// A notice that is repeated is acknowledged again, which changes nothing.
		audit.Entry{
			Action: audit.AcknowledgeDrain, Shard: key.Shard, Group: observed.notice.Group, Instance: key.Instance,
			From: string(result), To: "deleting", Writer: controllers.FieldManager, Reason: observed.notice.Reason, Result: controllers.CallResult(err), Err: err,
		}.Log(ctx)
	}
	if err != nil {
		s.acknowledgementFailed(c.clock.Now())
		return 0, err
	}
	if s.setAcknowledged(observed.notice.Announced) {
		c.metrics.drainFinished(s.reason, c.clock.Since(s.startedAt), result)
		c.recordOutcome(ctx, key, observed.nodes, result)
		if result == noNode {
			c.recordNoNode(key, observed.notice.Group)
		}
	}
	c.queue.Add(key)
	return 0, nil
}

// checkWithdrawal uncordons the Node of an instance without a notice if the shard
// confirms that the instance runs and will not be deleted.
func (c *Controller) checkWithdrawal(ctx context.Context, key Key, observed observation) (time.Duration, error) {
	stays, retry, err := c.instanceStays(ctx, key)
	if err != nil || !stays {
		return retry, err
	}
	if _, ok := c.notices.Get(key.Shard, key.Instance); ok {
		// The notice arrived during the query.
		return 0, nil
	}
	for _, node := range observed.cordoned {
		schedulable, err := c.uncordon(ctx, node)
		if err != nil {
			return 0, err
		}
		klog.FromContext(ctx).Info("Cordon of the Node removed because the shard withdrew the deletion of its instance", "node", node.Name, "schedulable", schedulable)
	}
	return 0, nil
}

// instanceStays queries the shard and reports whether the instance runs and is not
// going to be deleted. If the shard still intends to delete it, retry is the time
// after which to query again.
func (c *Controller) instanceStays(ctx context.Context, key Key) (stays bool, retry time.Duration, err error) {
	instance, err := c.shards.GetInstance(ctx, key.Shard, key.Instance)
	switch {
	case errors.Is(err, shard.ErrUnknownShard):
		// No server can confirm anything about the Node, so it stays cordoned.
		return false, 0, nil
	case shard.IsNotFound(err), err == nil && instance.State.IsTerminating():
		// The machine is being deleted, so its Node must not get Pods again.
		return false, 0, nil
	case err != nil:
		return false, 0, err
	case instance.State != shard.InstanceRunning || !instance.DeleteAt.IsZero():
		return false, withdrawalPeriod, nil
	}
	return true, 0, nil
}
