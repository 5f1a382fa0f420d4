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
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

func (c *Controller) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	if !c.writes.CaughtUp(key) {
		return c.writes.Delay(key), nil
	}
	object, err := controller.GetCached(c.lister.Get, "shard group", key)
	if err != nil {
		return 0, err
	}
	if object == nil {
		c.forget(key)
		return 0, nil
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
		return 0, c.retain(ctx, object, "spec.deletionPolicy is Retain")
	case upsert:
		if shrinks(object, observed.group) {
			if ofPool, err := c.sizeIsOfPool(ctx, object); err != nil || !ofPool {
				return editedRetry, err
			}
		}
		result.err = c.upsert(ctx, key, object, &observed)
	case remove:
		wanted, err := c.deletionWanted(ctx, object)
		if err != nil {
			return 0, err
		}
		if !wanted {
			return 0, c.retain(ctx, object, "its pool still has the shard")
		}
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
	wait, err := c.writeStatus(ctx, object, observed, result)
	if err != nil || wait > 0 {
		return wait, err
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
	observed.drains.draining, observed.drains.blocked, observed.drains.list = c.options.Drains.Summary(id, string(object.Spec.Group))
	observed.drains.waiting = c.options.Drains.Waiting(id, string(object.Spec.Group))
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

// writeStatus applies the status if it differs from the cached one, and records new
// problems as events. It returns the delay after which to sync again if the status is not
// written yet.
func (c *Controller) writeStatus(ctx context.Context, object *v1beta1.NstanceShardGroup, observed observation, result outcome) (time.Duration, error) {
	status := newStatus(object, observed, result, c.rejection(cache.MetaObjectToName(object)))
	if equality.Semantic.DeepEqual(status, object.Status) {
		return 0, nil
	}
	if wait := c.reportWait(object, observed, status, c.clock.Now()); wait > 0 {
		return wait, nil
	}
	written, err := c.client.ApplyStatus(ctx, applyStatus(object, status), controllers.Apply)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("write the status of shard group %s: %w", klog.KObj(object), err)
	}
	c.writes.Record(written)
	c.recordProblems(object, status)
	c.recordReachable(&object.Status, written)
	return 0, nil
}
