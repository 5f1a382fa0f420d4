// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/identifier"
)

func (c *Controller) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	if err := identifier.Validate(key.Name); err != nil {
		if _, logged := c.unnameable.LoadOrStore(key.Name, struct{}{}); !logged {
			klog.FromContext(ctx).Info("Ignored a group that no pool can be named for", "err", err)
		}
		return 0, nil
	}
	if !c.writes.Seen(key) {
		return staleRetry, nil
	}
	seen, err := c.observe(key.Name)
	if err != nil {
		return 0, err
	}
	decided := plan(seen)
	c.record(decided.warning)
	return 0, c.create(ctx, key, decided.create)
}

// observe reads the caches.
func (c *Controller) observe(group string) (observation, error) {
	seen := observation{
		group:      group,
		pools:      c.poolsOf(group),
		takenAlong: c.takenAlong(group),
	}
	namesake, err := c.poolLister.Get(group)
	switch {
	case err == nil && string(namesake.Spec.Group) != group:
		seen.namesake = namesake
	case err != nil && !apierrors.IsNotFound(err):
		return observation{}, fmt.Errorf("read pool %s from the cache: %w", c.key(group), err)
	}
	cluster, err := c.clusterLister.Get(c.clusterName)
	switch {
	case err == nil:
		seen.cluster = cluster
	case !apierrors.IsNotFound(err):
		return observation{}, fmt.Errorf("read Cluster %s from the cache: %w", c.key(c.clusterName), err)
	}
	for _, id := range c.shards.Shards() {
		state, err := c.observeShard(id, group)
		if err != nil {
			return observation{}, err
		}
		seen.shards = append(seen.shards, state)
	}
	return seen, nil
}

func (c *Controller) observeShard(id, key string) (shardState, error) {
	reachable, _ := c.groups.Reachable(id)
	state := shardState{id: id, known: reachable && c.groups.HasSynced(id)}
	if group, ok := c.groups.Get(id, key); ok {
		state.group = &group
	}
	name := v1beta1.ShardGroupName(key, id)
	shardGroup, err := c.shardGroupLister.Get(name)
	switch {
	case err == nil:
		state.shardGroup = shardGroup
	case !apierrors.IsNotFound(err):
		return shardState{}, fmt.Errorf("read shard group %s from the cache: %w", c.key(name), err)
	}
	return state, nil
}

// create makes the pool. It is not applied: its spec is then its users', and a
// later apply of other fields would take back what this one has set. The
// finalizer comes with it, which saves its controller a write.
func (c *Controller) create(ctx context.Context, key cache.ObjectName, spec *v1beta1.NstanceMachinePoolSpec) error {
	if spec == nil {
		return nil
	}
	created, err := c.pools.Create(ctx, &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:  key.Namespace,
			Name:       key.Name,
			Finalizers: []string{v1beta1.FinalizerMachinePool},
		},
		Spec: *spec,
	}, metav1.CreateOptions{FieldManager: controller.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		// Somebody was faster; the cache will show it.
		return nil
	}
	if err != nil {
		return fmt.Errorf("create pool %s: %w", key, err)
	}
	c.writes.Wrote(created)
	klog.FromContext(ctx).Info("Pool made for a group that the shards have", "shards", spec.Shards, "template", spec.Template)
	return nil
}
