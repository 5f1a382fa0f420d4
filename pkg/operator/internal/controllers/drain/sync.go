// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/shard"
)

// sync takes the next step of one drain.
func (c *Controller) sync(ctx context.Context, key Key) (time.Duration, error) {
	now := c.clock.Now()
	observed, s, err := c.observe(ctx, key, now)
	if err != nil {
		s.setFailure(err, now)
		c.reportProgress(key, s, observed, decision{})
		return 0, err
	}
	for _, node := range observed.nodes {
		if !c.writes.CaughtUp(cache.MetaObjectToName(node)) {
			return controller.StaleRetry, nil
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
	err = c.act(ctx, key, s, observed, next)
	if inProgress {
		c.recordResult(s, next.step, err, now)
		c.reportProgress(key, s, observed, next)
		next.until = earliest(next.until, s.failureReportAt(now))
	}
	return delayUntil(next.until, now), err
}

// observe reads the caches. The state is nil if the shard does not request a drain, and
// not if there is an error.
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
	observed.acknowledged, observed.expired = s.isAcknowledged(notice.Announced), s.isExpired()
	observed.nodes = c.nodes.WithProviderID(notice.ProviderID)
	if len(observed.nodes) == 0 {
		observed.notFound = c.nodeLookup.notFound(key)
	} else {
		// If the Node is deleted later, that needs a new lookup.
		c.nodeLookup.forget(key)
	}
	if len(observed.nodes) != 1 || observed.acknowledged || overdue(observed.notice, now) {
		return observed, s, nil
	}
	var err error
	observed.pods, err = c.observePods(ctx, s, observed.nodes[0], now)
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
		c.nodeLookup.request(key, observed.notice.ProviderID)
	case cordon:
		node := observed.nodes[0]
		if err := c.applyCordon(ctx, node, key); err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Node cordoned", "node", node.Name, "reason", observed.notice.Reason, "deleteAt", observed.notice.DeleteAt)
		if !observed.acknowledged && !observed.expired && s.setStarted() {
			c.recordStart(key, node, observed.notice)
		}
	case watchPods:
		c.startPodWatch(ctx, key, s, observed.nodes[0].Name)
	case classifyPods:
		if _, err := c.classifyPods(ctx, s, observed.nodes[0]); err != nil {
			return err
		}
		c.queue.Add(key)
	case evict:
		c.evictions.set(key, observed.nodes[0], notDeleted(observed.pods.remaining), observed.notice.Deadline)
	case acknowledge:
		c.shardCalls.Add(key)
	case expire:
		c.expire(ctx, key, s, observed)
		c.queue.Add(key)
	case nothing, reportAmbiguity, awaitVolumes:
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

// stop stops the work on a drain that the shard does not request, that is acknowledged or
// whose deadline is over, except for its evictions.
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
	if next.step == reportAmbiguity {
		blockages = []blockage{newAmbiguity(observed.notice.ProviderID, observed.nodes)}
	}
	if err := s.lastingFailure(c.clock.Now()); err != nil {
		blockages = append(blockages, newFailure(key.Instance, observed.nodes, err))
	}
	if s.setBlocked(len(blockages) > 0) {
		c.recordBlockage(key, observed, blockages[0])
	}
	if !s.wasAcknowledged() {
		c.progress.set(key, observed.notice.Group, blockages)
	}
}
