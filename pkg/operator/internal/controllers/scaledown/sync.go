// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scaledown

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// sync protects the Nodes of the replacements of a shard group, and no others.
func (c *Controller) sync(ctx context.Context, name string) (time.Duration, error) {
	group, err := controller.GetCached(c.shardGroups.Get, "shard group", cache.NewObjectName(c.namespace, name))
	if err != nil {
		return 0, err
	}
	if group == nil {
		return 0, c.releaseAll(ctx, name)
	}
	pool, err := c.poolOf(group)
	if err != nil || pool == nil {
		return 0, err
	}
	machinePools := controller.Indexed[clusterv1.MachinePool](c.machinePoolIndex, capi.ByPool, pool.Name)
	paused, err := c.paused(pool, machinePools)
	if err != nil || paused {
		return 0, err
	}
	nodes := map[string]*corev1.Node{}
	for _, node := range c.protectedFor(name) {
		nodes[node.Name] = node
	}
	wanted := sets.New[string]()
	if !deleting(group) && isScaledDown(pool, machinePools) {
		found, known := c.replacements(group, nodes)
		if !known {
			return 0, nil
		}
		for _, instance := range found {
			for _, node := range c.nodes.WithProviderID(instance.ProviderID) {
				nodes[node.Name] = node
				wanted.Insert(node.Name)
			}
		}
	}
	var recheck time.Duration
	var failed []error
	for _, node := range nodes {
		owner, foreign := c.nodes.ShardGroupOf(node)
		if foreign {
			recheck = controllers.ForeignRecheck
		}
		if owner == nil || owner.Name != name {
			continue
		}
		protectFor := ""
		if wanted.Has(node.Name) {
			protectFor = name
		}
		failed = append(failed, c.write(ctx, node, protectFor))
	}
	return recheck, errors.Join(failed...)
}

// releaseAll releases the Nodes of a shard group that no longer exists. Its instances may run on: a pool that
// retains them deletes its shard groups at once.
func (c *Controller) releaseAll(ctx context.Context, name string) error {
	var failed []error
	for _, node := range c.protectedFor(name) {
		failed = append(failed, c.write(ctx, node, ""))
	}
	return errors.Join(failed...)
}

// poolOf returns the pool of a shard group, nil if it is not in the cache.
func (c *Controller) poolOf(group *v1beta1.NstanceShardGroup) (*v1beta1.NstanceMachinePool, error) {
	owner := controllers.PoolOwning(group)
	if owner == nil {
		return nil, nil
	}
	pool, err := controller.GetCached(c.pools.Get, "pool", cache.NewObjectName(c.namespace, owner.Name))
	if err != nil || pool == nil || pool.UID != owner.UID {
		return nil, err
	}
	return pool, nil
}

// paused reports whether the pool, a MachinePool that refers to it, or the Cluster is paused.
func (c *Controller) paused(pool *v1beta1.NstanceMachinePool, machinePools []*clusterv1.MachinePool) (bool, error) {
	cluster, err := controller.GetCached(c.clusters.Get, "Cluster", cache.NewObjectName(c.namespace, c.clusterName))
	if err != nil {
		return false, err
	}
	objects := []metav1.Object{pool}
	for _, machinePool := range machinePools {
		objects = append(objects, machinePool)
	}
	return controllers.PausedBy(cluster, objects...) != "", nil
}

// isScaledDown reports whether the autoscaler may remove Nodes of a pool.
func isScaledDown(pool *v1beta1.NstanceMachinePool, machinePools []*clusterv1.MachinePool) bool {
	if deleting(pool) || !hasMachines(pool) {
		return false
	}
	for _, machinePool := range machinePools {
		if capi.Autoscaled(machinePool) {
			return true
		}
	}
	return false
}

// replacements returns the replacements of a shard group with these protected Nodes, and whether they are
// known: the shard is connected and has reported everything.
func (c *Controller) replacements(group *v1beta1.NstanceShardGroup, protected map[string]*corev1.Node) (found []shard.Instance, known bool) {
	id := string(group.Spec.Shard)
	if reachable, _ := c.groups.Reachable(id); !reachable || !c.groups.HasSynced(id) || !c.notices.Settled(id) {
		return nil, false
	}
	current, ok := c.groups.Get(id, string(group.Spec.Group))
	if !ok || !current.ListsInstances {
		return nil, false
	}
	return replacements(reported{
		group:  current,
		notice: func(instance string) (shard.DeletionNotice, bool) { return c.notices.Get(id, instance) },
		protected: func(instance shard.Instance) bool {
			return slices.ContainsFunc(c.nodes.WithProviderID(instance.ProviderID), func(node *corev1.Node) bool { return protected[node.Name] != nil })
		},
	}), true
}

// write protects a Node for a shard group, or not if that is "". It writes nothing if that is so already, or
// if a user has decided about the Node.
func (c *Controller) write(ctx context.Context, cached *corev1.Node, protectFor string) error {
	if len(change(cached, protectFor)) == 0 {
		return nil
	}
	node, err := controllers.ReadNode(ctx, c.client, cached)
	if err != nil || node == nil {
		return err
	}
	annotations := change(node, protectFor)
	if len(annotations) == 0 {
		return nil
	}
	body, err := patch(node, annotations)
	if err != nil {
		return err
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: controllers.FieldManager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("change %s of Node %s: %w", AnnotationDisabled, node.Name, err)
	}
	if protectFor != "" {
		klog.FromContext(ctx).Info("Protected the Node of a replacement from the autoscaler", "node", node.Name, "shardGroup", protectFor)
	} else {
		klog.FromContext(ctx).Info("The autoscaler may remove the Node again", "node", node.Name)
	}
	return nil
}
