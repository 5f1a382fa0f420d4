// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
)

// pausedBy is what pauses a pool: its Cluster, itself, or a MachinePool that
// refers to it. "" when nothing does.
func pausedBy(cluster *clusterv1.Cluster, pool *v1beta1.NstanceMachinePool, machinePools []*clusterv1.MachinePool) string {
	for _, machinePool := range machinePools {
		if paused := controller.PausedBy(cluster, pool, machinePool); paused != "" {
			return paused
		}
	}
	return controller.PausedBy(cluster, pool)
}

// PausedBy tells what pauses the pool of a shard group, "" when nothing does. A
// shard group without a pool is paused by its Cluster only.
func (c *Controller) PausedBy(group *v1beta1.NstanceShardGroup) (string, error) {
	cluster, err := c.cluster()
	if err != nil {
		return "", err
	}
	pool, err := c.poolLister.Get(poolOf(group))
	if apierrors.IsNotFound(err) {
		return controller.PausedBy(cluster), nil
	}
	if err != nil {
		return "", fmt.Errorf("read pool %s from the cache: %w", c.key(poolOf(group)), err)
	}
	return pausedBy(cluster, pool, controller.Indexed[clusterv1.MachinePool](c.machinePoolIndex, capi.ByPool, pool.Name)), nil
}

// AddPauseHandler has wake called for every shard group of a pool that was paused
// or goes on. Add it before the informers run.
func (c *Controller) AddPauseHandler(wake func(shardGroup cache.ObjectName)) { c.onPause = wake }

// cluster is the Cluster that the pools belong to, nil when there is none.
func (c *Controller) cluster() (*clusterv1.Cluster, error) {
	cluster, err := c.clusterLister.Get(c.clusterName)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Cluster %s from the cache: %w", c.key(c.clusterName), err)
	}
	return cluster, nil
}

// clusterChanged wakes every pool when the Cluster came or goes or went, and when
// it was paused or goes on. All else about it is Cluster API's.
func (c *Controller) clusterChanged(before, after *clusterv1.Cluster) {
	if before != nil && after != nil &&
		ptr.Deref(before.Spec.Paused, false) == ptr.Deref(after.Spec.Paused, false) &&
		before.DeletionTimestamp.IsZero() == after.DeletionTimestamp.IsZero() {
		return
	}
	pools, err := c.poolLister.List(labels.Everything())
	if err != nil {
		// A lister of a cache gives no errors.
		panic(err)
	}
	for _, pool := range pools {
		c.wakeWithShardGroups(pool.Name)
	}
}

// wakeWithShardGroups wakes a pool and the controller of its shard groups.
func (c *Controller) wakeWithShardGroups(pool string) {
	c.queue.Add(c.key(pool))
	if c.onPause == nil {
		return
	}
	for _, group := range controller.Indexed[v1beta1.NstanceShardGroup](c.shardGroupIndex, byPool, pool) {
		c.onPause(cache.MetaObjectToName(group))
	}
}
