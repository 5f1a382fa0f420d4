// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"context"
	"fmt"
	"slices"
	"strings"
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
	switch {
	case key == changedShards:
		c.syncShards()
		return 0, nil
	case key.Name == allGroups:
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
	// Most groups have their pool, which is known without a look at every shard.
	decided, err := c.decide(key.Name)
	if err != nil {
		return 0, err
	}
	if decided.isNothing() {
		c.waiting.removeGroup(key.Name)
		return 0, nil
	}
	// The group is added before the look at the shards: a shard that becomes known after it finds the
	// group.
	c.waiting.addGroup(key.Name)
	if !c.allKnown() {
		return 0, nil
	}
	c.waiting.removeGroup(key.Name)
	// The groups are read when all shards are known, not before: a shard that became known in
	// between may have the group, too.
	if decided, err = c.decide(key.Name); err != nil {
		return 0, err
	}
	c.warn(decided.warning)
	if decided.create == nil {
		return 0, nil
	}
	if !c.limiter.Allow() {
		c.metrics.delayed.Inc()
		return importRetry, nil
	}
	return 0, c.create(ctx, key, decided)
}

// syncShards enqueues the groups of the shards that have changed, and the groups that have waited for
// them. While a shard is not known, nothing is imported; its next change calls this again.
func (c *Controller) syncShards() {
	if !c.allKnown() {
		return
	}
	groups, shards := c.waiting.take()
	for _, id := range shards {
		groups = append(groups, c.groupsOf(id)...)
	}
	for _, group := range groups {
		c.queue.Add(c.key(group))
	}
}

// decide plans the import of a group from the shards that have it.
func (c *Controller) decide(group string) (decision, error) {
	observed, err := c.observe(group)
	if err != nil {
		return decision{}, err
	}
	return plan(observed), nil
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
	observed.shards = c.observeShards(group)
	if observed.cluster, err = controller.GetCached(c.clusterLister.Get, "Cluster", c.key(c.clusterName)); err != nil {
		return observation{}, err
	}
	return observed, nil
}

// allKnown reports whether the cache has all groups of all shards, and all can be reached.
func (c *Controller) allKnown() bool {
	return !slices.ContainsFunc(c.shards.Shards(), func(id string) bool {
		reachable, _ := c.groups.Reachable(id)
		return !reachable || !c.groups.HasSynced(id)
	})
}

// observeShards returns the configured shards that have a group or a shard group of it, sorted by id.
func (c *Controller) observeShards(key string) []shardState {
	var states []shardState
	for _, id := range c.groups.ShardsWith(key) {
		if group, ok := c.groups.Get(id, key); ok && c.shards.Has(id) {
			states = append(states, shardState{id: id, group: &group})
		}
	}
	for _, shardGroup := range c.shardGroupIndex.OfGroup(key) {
		_, id, _ := strings.Cut(shardGroup.Name, identifier.Separator)
		if !c.shards.Has(id) || shardGroup.Namespace != c.namespace {
			continue
		}
		at := slices.IndexFunc(states, func(s shardState) bool { return s.id == id })
		if at < 0 {
			at = len(states)
			states = append(states, shardState{id: id})
		}
		states[at].shardGroup = shardGroup
	}
	slices.SortFunc(states, func(a, b shardState) int { return strings.Compare(a.id, b.id) })
	return states
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
