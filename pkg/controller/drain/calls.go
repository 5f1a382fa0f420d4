// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/shard"
)

// askPeriod is how often a shard is asked that has withdrawn a notice and says
// that the instance is going to be deleted all the same.
const askPeriod = 10 * time.Second

// calls are what is to be said to shards. Each shard has a queue, so that one that
// hangs holds up no other.
type calls struct {
	sync controller.SyncFunc[cache.ObjectName]
	// start runs a queue.
	start func(*controller.Queue[cache.ObjectName])

	mu     sync.Mutex
	queues map[string]*controller.Queue[cache.ObjectName]
}

func newCalls(sync controller.SyncFunc[cache.ObjectName]) *calls {
	return &calls{sync: sync, queues: make(map[string]*controller.Queue[cache.ObjectName])}
}

func (c *calls) add(key cache.ObjectName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	queue, ok := c.queues[key.Namespace]
	if !ok {
		queue = controller.NewQueue("drain-calls", c.sync)
		c.queues[key.Namespace] = queue
		c.start(queue)
	}
	queue.Add(key)
}

// call asks or tells a shard what the next step of a drain needs.
func (c *Controller) call(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	now := c.clock.Now()
	seen, r, err := c.observe(ctx, key, now)
	if err != nil {
		return 0, err
	}
	switch next := plan(seen, now); next.step {
	case acknowledge:
		return c.acknowledge(ctx, key, r, seen, next.outcome)
	case ask:
		return c.ask(ctx, key, seen)
	default:
		// Something has changed since the sync that wanted a call.
		c.queue.Add(key)
		return 0, nil
	}
}

// acknowledge tells the shard that the instance can be deleted. It does so for a
// drained Node only when a live list shows no Pod that has to leave.
func (c *Controller) acknowledge(ctx context.Context, key cache.ObjectName, r *record, seen observation, end outcome) (time.Duration, error) {
	if early := r.earlyToCall(c.clock.Now()); early > 0 {
		return early, nil
	}
	if end == drained || end == volumesAttached {
		if early := seen.pods.listAfter.Sub(c.clock.Now()); early > 0 {
			return early, nil
		}
		left, err := c.sortPods(ctx, r, seen.nodes[0])
		if err != nil {
			return 0, err
		}
		if left > 0 {
			c.queue.Add(key)
			return 0, nil
		}
	}
	r.setCalling()
	if err := c.shards.AcknowledgeDrained(ctx, key.Namespace, key.Name); err != nil {
		r.callFailed(c.clock.Now())
		return 0, err
	}
	if r.conclude(seen.notice.Announced) {
		observeDrain(r.reason, c.clock.Since(r.began), end)
	}
	logger := klog.FromContext(ctx)
	if end == timedOut {
		logger.Error(nil, "Drain was not finished in time", "reason", seen.notice.Reason, "deleteAt", seen.notice.DeleteAt)
	} else {
		logger.Info("Drain acknowledged", "outcome", end, "reason", seen.notice.Reason)
	}
	c.queue.Add(key)
	return 0, nil
}

// ask asks what has become of an instance whose Node is marked and whose shard
// tells of no drain, and uncordons the Node when the instance is there to stay.
func (c *Controller) ask(ctx context.Context, key cache.ObjectName, seen observation) (time.Duration, error) {
	instance, err := c.shards.Instance(ctx, key.Namespace, key.Name)
	switch {
	case errors.Is(err, shard.ErrUnknownShard):
		// Nobody can say anything about the Node. It stays as it is.
		return 0, nil
	case shard.IsNotFound(err), err == nil && instance.State.Ends():
		// The machine goes, and its Node must not get Pods again.
		return 0, nil
	case err != nil:
		return 0, err
	case instance.State != shard.InstanceRunning || !instance.DeleteAt.IsZero():
		return askPeriod, nil
	}
	if _, told := c.notices.Get(key.Namespace, key.Name); told {
		// It came while the answer was under way.
		return 0, nil
	}
	for _, node := range seen.marked {
		if err := c.applyUncordon(ctx, node); err != nil {
			return 0, err
		}
		klog.FromContext(ctx).Info("Node uncordoned, because the shard has withdrawn the deletion of its instance", "node", node.Name)
	}
	return 0, nil
}
