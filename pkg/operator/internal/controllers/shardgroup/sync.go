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
	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

func (c *Controller) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	object, err := controller.GetCached(c.lister.Get, "shard group", key)
	if err != nil {
		return 0, err
	}
	if object == nil {
		c.forget(key)
		return 0, nil
	}
	if !c.writes.CaughtUp(key) {
		return c.writes.Delay(key), nil
	}

	observed, err := c.observe(object)
	if err != nil {
		return 0, err
	}
	now := metav1.NewTime(c.clock.Now())
	c.reviewRejection(key, object, observed, now.Time)
	result := outcome{step: plan(object, observed, c.rejection(key), now.Time), now: now}
	switch result.step {
	case abandon:
		return 0, c.abandon(ctx, object)
	case retain:
		return 0, c.retain(ctx, object)
	case upsert:
		result.err = c.upsert(ctx, key, object, &observed)
	case remove:
		result.err = c.remove(ctx, key, object, observed)
	case finalize:
		return 0, c.finalize(ctx, object)
	}
	if result.step == remove && result.err == nil && c.confirmed(key, object, c.observeGroup(object)) {
		return 0, c.finalize(ctx, object)
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err := c.writeStatus(ctx, object, observed, result); err != nil {
		return 0, err
	}
	rejected := c.rejection(key)
	switch {
	case result.step == upsert && rejected != nil, result.step == nothing && rejected.stillApplies(object, observed.group, now.Time),
		shard.IsStale(result.err):
		return rejected.until.Sub(now.Time), nil
	case result.step == nothing && now.Time.Before(observed.nextCorrection):
		return observed.nextCorrection.Sub(now.Time), nil
	case result.err == nil && observed.reachable && observed.paused == "" && c.unreviewed(key, object):
		return listedRetry, nil
	default:
		return c.settling(key, object, observed.group), result.err
	}
}

func (c *Controller) observe(object *v1beta1.NstanceShardGroup) (observation, error) {
	id := string(object.Spec.Shard)
	observed := observation{configured: c.shards.Has(id), synced: c.groups.HasSynced(id), group: c.observeGroup(object)}
	observed.reachable, observed.lost = c.groups.Reachable(id)
	observed.paused = controllers.PausedBy(nil, object)
	if observed.paused == "" {
		var err error
		if observed.paused, err = c.options.Pools.PausedBy(object); err != nil {
			return observation{}, err
		}
	}
	observed.nextCorrection = c.nextCorrection(cache.MetaObjectToName(object), object)
	observed.unlisted, observed.confirmed = c.reviewDeletion(cache.MetaObjectToName(object), object, observed.group)
	observed.settling = c.settling(cache.MetaObjectToName(object), object, observed.group) > 0
	observed.drains.draining, observed.drains.blocked, observed.drains.message = c.options.Drains.Summary(id, string(object.Spec.Group))
	observed.drainsKnown = c.notices.Settled(id) || c.notices.Session(id) > 0
	observed.failure = c.reviewFailure(cache.MetaObjectToName(object), object, observed)
	return observed, nil
}

// observeGroup returns the group that the shard reports, nil if it does not have the group.
func (c *Controller) observeGroup(object *v1beta1.NstanceShardGroup) *shard.Group {
	if group, ok := c.groups.Get(string(object.Spec.Shard), string(object.Spec.Group)); ok {
		return &group
	}
	return nil
}

// upsert sends the whole configuration and puts the reply into the cache, so that neither this
// sync nor the next one reads the previous state of the group. A rejection is stored, because
// the same request would be rejected again. So is the reply that the object is stale, and for
// a short time a reply that may be a rejection.
func (c *Controller) upsert(ctx context.Context, key cache.ObjectName, object *v1beta1.NstanceShardGroup, observed *observation) error {
	id := string(object.Spec.Shard)
	before := observed.group
	config := wanted(object, before)
	ctx, _ = audit.WithNewRequest(ctx)
	group, err := c.calls.UpsertGroup(ctx, id, string(object.Spec.Group), config)
	after := group
	if err != nil {
		after = requested(before, config)
	}
	c.auditUpsert(ctx, object, before, after, c.isCorrection(key, object), err)
	switch {
	case err == nil:
		if config.Replaces != nil {
			klog.FromContext(ctx).Info("Replaced a newer revision of the group as the annotation says", "shard", id, "revision", config.Revision, "replaced", config.Replaces, "size", config.Size)
		}
		klog.FromContext(ctx).V(2).Info("Group updated on shard", "shard", id, "size", object.Spec.Size, "removeFirst", object.Spec.RemoveFirst)
		c.recordSent(key, object)
		c.groups.Observe(id, group)
		// The cached instances are newer than the instances in the reply.
		if cached, ok := c.groups.Get(id, string(object.Spec.Group)); ok {
			observed.group = &cached
		}
	case shard.IsUnclear(err):
		c.setRejection(key, c.newUnclear(key, object, before, err))
		return err
	case shard.IsRejected(err), shard.IsStale(err):
		c.setRejection(key, newRejection(object, before, err, c.clock.Now()))
	}
	c.clearUnclear(key)
	return err
}

// finalize completes the deletion of the object after the shard has confirmed the deletion of
// the group.
func (c *Controller) finalize(ctx context.Context, object *v1beta1.NstanceShardGroup) error {
	if err := c.removeFinalizer(ctx, object); err != nil {
		return err
	}
	controller.Record(c.recorder, object, reasonGroupDeleted, "DeleteGroup",
		fmt.Sprintf("shard %q has deleted group %q", object.Spec.Shard, object.Spec.Group))
	return nil
}

// removeFinalizer lets the API server delete the object.
func (c *Controller) removeFinalizer(ctx context.Context, object *v1beta1.NstanceShardGroup) error {
	patch, err := controller.RemoveFinalizer(object, v1beta1.FinalizerShardGroup)
	if err != nil || patch == nil {
		return err
	}
	_, err = c.client.Patch(ctx, object.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: controllers.FieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the finalizer of shard group %s: %w", klog.KObj(object), err)
	}
	return nil
}

// writeStatus applies the status if it differs from the cached one, and records new
// problems as events.
func (c *Controller) writeStatus(ctx context.Context, object *v1beta1.NstanceShardGroup, observed observation, result outcome) error {
	status := newStatus(object, observed, result, c.rejection(cache.MetaObjectToName(object)))
	if equality.Semantic.DeepEqual(status, object.Status) {
		return nil
	}
	written, err := c.client.ApplyStatus(ctx, applyStatus(object, status), controllers.Apply)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the status of shard group %s: %w", klog.KObj(object), err)
	}
	c.writes.Record(written)
	c.recordProblems(object, status)
	c.recordReachable(&object.Status, written)
	return nil
}
