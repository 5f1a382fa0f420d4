// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/shard"
)

// staleRetry is how long a sync waits for the cache to show the last cordon.
const staleRetry = 50 * time.Millisecond

// sync takes the next step of one drain.
func (c *Controller) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	now := c.clock.Now()
	seen, r, err := c.observe(ctx, key, now)
	if err != nil {
		return 0, err
	}
	for _, node := range seen.nodes {
		if !c.writes.Seen(cache.MetaObjectToName(node)) {
			return staleRetry, nil
		}
	}
	next := plan(seen, now)
	if r == nil || seen.acknowledged {
		c.standDown(key)
	}
	if err := c.take(ctx, key, r, seen, next); err != nil {
		return 0, err
	}
	if r != nil && !seen.acknowledged {
		c.show(key, r, seen, next)
	}
	return until(next.until, now), nil
}

// take takes a step.
func (c *Controller) take(ctx context.Context, key cache.ObjectName, r *record, seen observation, next decision) error {
	switch next.step {
	case forget:
		c.forget(key, next.outcome)
	case ask:
		c.forget(key, withdrawn)
		c.calls.add(key)
	case lookUp:
		c.evictions.drop(key)
		c.lookups.ask(key, seen.notice.ProviderID)
	case report, detach:
		c.evictions.drop(key)
	case cordon:
		if err := c.applyCordon(ctx, seen.nodes[0], mark(key)); err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Node cordoned", "node", seen.nodes[0].Name, "reason", seen.notice.Reason, "deleteAt", seen.notice.DeleteAt)
	case watchPods:
		c.watchPods(ctx, key, r, seen.nodes[0].Name)
	case sortPods:
		if _, err := c.sortPods(ctx, r, seen.nodes[0]); err != nil {
			return err
		}
		c.queue.Add(key)
	case evict:
		c.evictions.want(key, seen.nodes[0], running(seen.pods.remaining), seen.notice.DeleteAt)
	case acknowledge:
		c.evictions.drop(key)
		c.calls.add(key)
	}
	return nil
}

// observe reads the caches. There is a record if the shard wants a drain.
func (c *Controller) observe(ctx context.Context, key cache.ObjectName, now time.Time) (observation, *record, error) {
	// First: a notice that comes between the two must not look withdrawn.
	seen := observation{settled: c.notices.Settled(key.Namespace), marked: c.markedFor(key)}
	notice, ok := c.notices.Get(key.Namespace, key.Name)
	if !ok {
		return seen, nil, nil
	}
	seen.notice = &notice
	if notice.State != shard.Draining {
		return seen, nil, nil
	}
	r := c.recordOf(key, seen.notice)
	seen.acknowledged = r.acknowledgedFor(notice.Announced)
	seen.nodes = c.nodes.WithProviderID(notice.ProviderID)
	if len(seen.nodes) == 0 {
		seen.absent = c.lookups.absent(key)
	} else {
		// If it goes, that has to be looked up anew.
		c.lookups.forget(key)
	}
	if len(seen.nodes) != 1 || seen.acknowledged || overdue(seen.notice, now) {
		return seen, r, nil
	}
	var err error
	seen.pods, err = c.observePods(ctx, r, seen.nodes[0], now)
	return seen, r, err
}

// standDown ends what goes on for a drain that nobody wants any more, or that is
// acknowledged.
func (c *Controller) standDown(key cache.ObjectName) {
	c.evictions.drop(key)
	c.progress.remove(key)
	c.lookups.forget(key)
	if r := c.existing(key); r != nil {
		r.stopWatching()
	}
}

// forget ends the memory of a drain.
func (c *Controller) forget(key cache.ObjectName, end outcome) {
	if r := c.existing(key); r != nil {
		c.remove(key, r)
		if !r.ended() {
			observeDrain(r.reason, c.clock.Since(r.began), end)
		}
	}
}

// show puts a drain that goes on into the summary, and reports what keeps it. One
// that is only to be acknowledged again is over.
func (c *Controller) show(key cache.ObjectName, r *record, seen observation, next decision) {
	blocked := c.evictions.blocked(key)
	if next.step == report {
		blocked = []blockage{ambiguous(seen.notice.ProviderID, seen.nodes)}
	}
	if r.becomesReported(len(blocked) > 0) {
		c.recordBlocked(seen.nodes, blocked[0])
	}
	if !r.isConcluded() {
		c.progress.set(key, seen.notice.Group, blocked)
	}
}
