// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nodesettings

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// reasonRejected is the reason of the event for labels and taints that the API server rejects.
const reasonRejected = "NodeSettingsRejected"

// sync makes the labels and taints of a Node those of its pool.
func (c *Controller) sync(ctx context.Context, name string) (time.Duration, error) {
	object, exists, err := c.nodeIndex.GetByKey(name)
	if err != nil {
		return 0, fmt.Errorf("read Node %s from the cache: %w", name, err)
	}
	cached, ok := object.(*corev1.Node)
	if !exists || !ok {
		return 0, nil
	}
	pool, foreign, err := c.poolOfNode(cached)
	if err != nil || pool == nil {
		if foreign {
			return controllers.ForeignRecheck, err
		}
		return 0, err
	}
	var wanted v1beta1.NodeSettings
	if pool.Spec.Node != nil {
		wanted = *pool.Spec.Node
	}
	if next, err := plan(cached, wanted); err != nil || next == nil {
		return 0, err
	}
	paused, err := c.pausedBy(pool)
	if err != nil || paused {
		return 0, err
	}
	node, err := controllers.ReadNode(ctx, c.client, cached)
	if err != nil || node == nil {
		return 0, err
	}
	next, err := plan(node, wanted)
	if err != nil || next == nil {
		return 0, err
	}
	patch, err := next.patch(node)
	if err != nil {
		return 0, err
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: controllers.FieldManager})
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case apierrors.IsInvalid(err):
		controller.Warn(c.recorder, pool, reasonRejected, "Label", fmt.Sprintf("the API server rejects spec.node for Node %s: %v", node.Name, err))
		return 0, fmt.Errorf("set labels and taints of Node %s: %w", node.Name, err)
	case err != nil:
		return 0, fmt.Errorf("set labels and taints of Node %s: %w", node.Name, err)
	}
	c.nodesWritten.Inc()
	klog.FromContext(ctx).Info("Set labels and taints of the Node", "node", node.Name, "pool", pool.Name)
	return 0, nil
}

// poolOfNode returns the pool whose instance has a Node, nil if that is not certain: no shard reports the
// provider id, or several pools or Nodes have it. foreign reports that a shard which may not name the
// Node reports it.
func (c *Controller) poolOfNode(node *corev1.Node) (pool *v1beta1.NstanceMachinePool, foreign bool, err error) {
	group, foreign := c.nodesByProviderID.ShardGroupOf(node)
	if group == nil {
		return nil, foreign, nil
	}
	pool, err = controller.GetCached(c.pools.Get, "pool", cache.NewObjectName(c.namespace, poolOf(group)))
	if err != nil || pool == nil || !pool.DeletionTimestamp.IsZero() {
		return nil, false, err
	}
	return pool, false, nil
}

// pausedBy reports whether the pool or its Cluster is paused.
func (c *Controller) pausedBy(pool *v1beta1.NstanceMachinePool) (bool, error) {
	cluster, err := controller.GetCached(c.clusters.Get, "Cluster", cache.NewObjectName(c.namespace, c.clusterName))
	if err != nil {
		return false, err
	}
	return controllers.PausedBy(cluster, pool) != "", nil
}
