// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/shard"
)

func (c *Controller) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	object, err := c.lister.Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read shard group %s from the cache: %w", key, err)
	}
	if !c.writes.Seen(key) {
		return staleRetry, nil
	}

	seen, err := c.observe(object)
	if err != nil {
		return 0, err
	}
	now := metav1.NewTime(c.clock.Now())
	c.reviewRefusal(key, object, seen, now.Time)
	done := outcome{step: plan(object, seen, c.refusal(key), now.Time), now: now}
	switch done.step {
	case upsert:
		done.err = c.upsert(ctx, key, object, &seen)
	case remove:
		done.err = c.shards.DeleteGroup(ctx, string(object.Spec.Shard), string(object.Spec.Group))
	}
	if done.step == remove && done.err == nil && confirmed(c.observeGroup(object)) {
		return 0, c.release(ctx, object)
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err := c.writeStatus(ctx, object, seen, done); err != nil {
		return 0, err
	}
	refused := c.refusal(key)
	switch {
	case done.step == upsert && refused != nil, done.step == nothing && refused.holds(object.Generation, seen.group, now.Time):
		return refused.until.Sub(now.Time), nil
	default:
		return 0, done.err
	}
}

// observe reads the caches.
func (c *Controller) observe(object *v1beta1.NstanceShardGroup) (observation, error) {
	id := string(object.Spec.Shard)
	seen := observation{configured: c.shards.Has(id), synced: c.groups.HasSynced(id), group: c.observeGroup(object)}
	seen.reachable, seen.lost = c.groups.Reachable(id)
	seen.paused = controller.PausedBy(nil, object)
	if seen.paused == "" {
		var err error
		if seen.paused, err = c.pauses.PausedBy(object); err != nil {
			return observation{}, err
		}
	}
	seen.drains.draining, seen.drains.blocked, seen.drains.message = c.drains.Summary(id, string(object.Spec.Group))
	seen.failure = c.reviewFailure(cache.MetaObjectToName(object), object, seen)
	return seen, nil
}

// observeGroup is the group as the shard reports it, nil when it has none.
func (c *Controller) observeGroup(object *v1beta1.NstanceShardGroup) *shard.Group {
	if group, ok := c.groups.Get(string(object.Spec.Shard), string(object.Spec.Group)); ok {
		return &group
	}
	return nil
}

// upsert sends the whole configuration and puts the answer into the cache, so
// that neither this sync nor the next one sees the group as it was before. A
// refusal is remembered instead of returned: trying again would change nothing.
func (c *Controller) upsert(ctx context.Context, key cache.ObjectName, object *v1beta1.NstanceShardGroup, seen *observation) error {
	id := string(object.Spec.Shard)
	before := seen.group
	group, err := c.shards.UpsertGroup(ctx, id, string(object.Spec.Group), wanted(&object.Spec, before))
	switch {
	case err == nil:
		klog.FromContext(ctx).V(2).Info("Group updated on shard", "shard", id, "size", object.Spec.Size, "removeFirst", object.Spec.RemoveFirst)
		c.groups.Observe(id, group)
		// The cache knows the instances better than the answer to a change of
		// configuration.
		if cached, ok := c.groups.Get(id, string(object.Spec.Group)); ok {
			seen.group = &cached
		}
	case shard.IsRejected(err):
		c.setRefusal(key, &rejection{
			generation: object.Generation,
			etag:       etag(before),
			until:      c.clock.Now().Add(rejectedRetry),
			message:    shard.Message(err),
		})
	}
	return err
}

// release lets the API server remove the object. The shard has confirmed that
// the group is gone.
func (c *Controller) release(ctx context.Context, object *v1beta1.NstanceShardGroup) error {
	patch, err := controller.RemoveFinalizer(object, v1beta1.FinalizerShardGroup)
	if err != nil || patch == nil {
		return err
	}
	_, err = c.client.Patch(ctx, object.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: controller.FieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the finalizer of shard group %s: %w", klog.KObj(object), err)
	}
	return nil
}

// writeStatus applies the status if it differs from the one in the cache, and
// reports new trouble as events.
func (c *Controller) writeStatus(ctx context.Context, object *v1beta1.NstanceShardGroup, seen observation, done outcome) error {
	status := newStatus(object, seen, done, c.refusal(cache.MetaObjectToName(object)))
	if equality.Semantic.DeepEqual(status, object.Status) {
		return nil
	}
	written, err := c.client.ApplyStatus(ctx, applyStatus(object, status), controller.Apply)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the status of shard group %s: %w", klog.KObj(object), err)
	}
	c.writes.Wrote(written)
	c.recordTrouble(object, status)
	return nil
}

// reviewRefusal forgets a refusal that no longer counts: the spec or the server's
// group has changed, its time is over, or the server now has what was refused.
func (c *Controller) reviewRefusal(key cache.ObjectName, object *v1beta1.NstanceShardGroup, seen observation, now time.Time) {
	if !seen.synced {
		return
	}
	if !c.refusal(key).holds(object.Generation, seen.group, now) || seen.group != nil && inOrder(&object.Spec, seen.group) {
		c.setRefusal(key, nil)
	}
}

func (c *Controller) refusal(key cache.ObjectName) *rejection {
	c.mu.Lock()
	defer c.mu.Unlock()
	if refused, ok := c.rejected[key]; ok {
		return &refused
	}
	return nil
}

func (c *Controller) setRefusal(key cache.ObjectName, refused *rejection) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if refused == nil {
		delete(c.rejected, key)
		return
	}
	c.rejected[key] = *refused
}

func (c *Controller) forget(key cache.ObjectName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.rejected, key)
	delete(c.failures, key)
}
