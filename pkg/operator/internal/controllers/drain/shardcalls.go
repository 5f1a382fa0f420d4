// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

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
		remaining, err := c.classifyPods(ctx, s, observed.nodes[0])
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
