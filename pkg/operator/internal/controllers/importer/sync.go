// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

func (c *Controller) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	if key.Name == allGroups {
		// While a shard is not known, no group is imported. When it is, this is called again.
		if slices.ContainsFunc(c.shards.Shards(), func(id string) bool { return !c.isKnown(id) }) {
			return 0, nil
		}
		for _, key := range c.keys() {
			c.queue.Add(key)
		}
		return 0, nil
	}
	if err := identifier.Validate(key.Name); err != nil {
		if _, logged := c.invalidNames.LoadOrStore(key.Name, struct{}{}); !logged {
			klog.FromContext(ctx).Info("Ignored a group whose name is not valid for a pool", "err", err)
		}
		return 0, nil
	}
	if !c.writes.CaughtUp(key) {
		return c.writes.Delay(key), nil
	}
	observed, err := c.observe(key.Name)
	if err != nil {
		return 0, err
	}
	decision := plan(observed)
	c.warn(decision.warning)
	if decision.create == nil {
		return 0, nil
	}
	if !c.limiter.Allow() {
		c.metrics.delayed.Inc()
		return importRetry, nil
	}
	return 0, c.create(ctx, key, decision)
}

func (c *Controller) observe(group string) (observation, error) {
	observed := observation{
		group:              group,
		pools:              c.poolsOf(group),
		machinePoolDeleted: c.hasDeletedMachinePool(group),
	}
	namesake, err := controller.GetCached(c.poolLister.Get, "pool", c.key(group))
	if err != nil {
		return observation{}, err
	}
	if namesake != nil && string(namesake.Spec.Group) != group {
		observed.namesake = namesake
	}
	for _, id := range c.shards.Shards() {
		state, err := c.observeShard(id, group)
		if err != nil {
			return observation{}, err
		}
		observed.shards = append(observed.shards, state)
	}
	if observed.cluster, err = controller.GetCached(c.clusterLister.Get, "Cluster", c.key(c.clusterName)); err != nil {
		return observation{}, err
	}
	return observed, nil
}

// isKnown reports whether the cache has all groups of a shard that can be reached.
func (c *Controller) isKnown(id string) bool {
	reachable, _ := c.groups.Reachable(id)
	return reachable && c.groups.HasSynced(id)
}

func (c *Controller) observeShard(id, key string) (shardState, error) {
	state := shardState{id: id, known: c.isKnown(id)}
	if group, ok := c.groups.Get(id, key); ok {
		state.group = &group
	}
	name := v1beta1.ShardGroupName(key, id)
	var err error
	state.shardGroup, err = controller.GetCached(c.shardGroupLister.Get, "shard group", c.key(name))
	return state, err
}

// create creates the pool, instead of applying it: the users own the spec, and a later apply
// with other fields would remove the fields of this apply. The pool is created with its
// finalizer, which saves its controller a write.
func (c *Controller) create(ctx context.Context, key cache.ObjectName, decided decision) error {
	spec := decided.create
	created, err := c.pools.Create(ctx, &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:  key.Namespace,
			Name:       key.Name,
			Finalizers: []string{v1beta1.FinalizerMachinePool},
		},
		Spec: *spec,
	}, metav1.CreateOptions{FieldManager: controllers.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		// Another client created the pool first; the cache will have it.
		return nil
	}
	if err != nil {
		return fmt.Errorf("create pool %s: %w", key, err)
	}
	c.writes.Record(created)
	c.metrics.imports.Inc()
	klog.FromContext(ctx).Info("Imported a group", "shards", spec.Shards, "template", spec.Template, "instances", decided.instances)
	controller.Record(c.recorder, created, reasonImported, "Import",
		fmt.Sprintf("group %q was imported: %d instances on %d shards", spec.Group, decided.instances, len(spec.Shards)))
	return nil
}

// Reasons of the events that pools get.
const (
	// reasonShardNotListed: the pool's group is on a shard that it does not name.
	reasonShardNotListed = "ShardNotListed"
	// reasonNameTaken: a group cannot have a pool because the pool has its name.
	reasonNameTaken = "NameTaken"
	// reasonImported: the pool was created for a group that was on shards.
	reasonImported = "Imported"
)

func (c *Controller) warn(w *warning) {
	if w != nil {
		controller.Warn(c.recorder, w.pool, w.reason, "Import", w.message)
	}
}
