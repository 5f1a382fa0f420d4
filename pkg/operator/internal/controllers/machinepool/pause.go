// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// pausedBy returns what pauses a pool: its Cluster, itself, or a MachinePool that
// refers to it. It returns "" if nothing does.
func pausedBy(cluster *clusterv1.Cluster, pool *v1beta1.NstanceMachinePool, machinePools []*clusterv1.MachinePool) string {
	for _, machinePool := range machinePools {
		if paused := controllers.PausedBy(cluster, pool, machinePool); paused != "" {
			return paused
		}
	}
	return controllers.PausedBy(cluster, pool)
}

// PausedBy returns what pauses the pool of a shard group, "" if nothing does. Only
// the Cluster pauses a shard group without a pool.
func (c *Controller) PausedBy(group *v1beta1.NstanceShardGroup) (string, error) {
	cluster, err := c.cluster()
	if err != nil {
		return "", err
	}
	pool, err := controller.GetCached(c.poolLister.Get, "pool", c.key(poolOf(group)))
	if err != nil {
		return "", err
	}
	if pool == nil {
		return controllers.PausedBy(cluster), nil
	}
	return pausedBy(cluster, pool, controller.Indexed[clusterv1.MachinePool](c.machinePoolIndex, capi.ByPool, pool.Name)), nil
}

// AddPauseHandler adds a handler that is called for each shard group of a pool that
// was paused or unpaused. It must be added before the informers run.
func (c *Controller) AddPauseHandler(handler func(shardGroup cache.ObjectName)) {
	c.pauseHandlers = append(c.pauseHandlers, handler)
}

// cluster returns the Cluster of the pools, nil if it does not exist.
func (c *Controller) cluster() (*clusterv1.Cluster, error) {
	return controller.GetCached(c.clusterLister.Get, "Cluster", c.key(c.clusterName))
}
