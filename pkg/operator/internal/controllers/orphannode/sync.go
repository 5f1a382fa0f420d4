// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package orphannode

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// reasonDeletingNode is the reason of the event for a Node that the operator deletes.
const reasonDeletingNode = "DeletingNode"

// sync takes the next step for a Node.
func (c *Controller) sync(ctx context.Context, name string) (time.Duration, error) {
	observed, err := c.observe(name)
	if err != nil {
		return 0, err
	}
	next := plan(observed, c.clock.Now())
	switch next.step {
	case ignore:
		c.forget(name)
	case search:
		if c.search(ctx, observed.node) {
			return listPeriod, nil
		}
	case await:
	case confirm:
		return c.confirm(ctx, observed.node, *observed.proof)
	}
	return next.after, nil
}

func (c *Controller) observe(name string) (observation, error) {
	object, exists, err := c.nodes.GetByKey(name)
	if err != nil {
		return observation{}, fmt.Errorf("read Node %s from the cache: %w", name, err)
	}
	node, ok := object.(*corev1.Node)
	if !exists || !ok {
		return observation{}, nil
	}
	cluster, err := controller.GetCached(c.clusters.Get, "Cluster", cache.NewObjectName(c.namespace, c.clusterName))
	if err != nil {
		return observation{}, err
	}
	observed := observation{node: node, paused: controllers.PausedBy(cluster) != "", proof: c.get(node)}
	if observed.proof != nil {
		id := observed.proof.shard
		observed.usable = c.usable(id)
		observed.listed = c.groups.ListedSince(id, observed.proof.mark)
		observed.reported = reports(c.groups.List(id), node)
	}
	return observed, nil
}

// usable reports whether a shard is configured and connected, and the cache has all its groups.
func (c *Controller) usable(id string) bool {
	reachable, _ := c.groups.Reachable(id)
	return reachable && c.shards.Has(id) && c.groups.HasSynced(id)
}

// search looks for the shard that has terminated the instance of a Node, and requests a list of
// its groups. It reports whether there is such a shard.
func (c *Controller) search(ctx context.Context, node *corev1.Node) bool {
	for _, id := range c.shards.Shards() {
		if c.usable(id) && c.isTerminated(ctx, id, node) && c.mayName(ctx, id, node) {
			c.set(node.Name, proof{uid: node.UID, shard: id, mark: c.groups.Relist(id)})
			return true
		}
	}
	return false
}

// mayName reports whether a Node may belong to a shard. A shard is not trusted with the Nodes of
// others.
func (c *Controller) mayName(ctx context.Context, id string, node *corev1.Node) bool {
	foreign := c.owners.Foreign(id, node)
	if foreign != "" {
		klog.FromContext(ctx).Info("Node is not deleted although a shard has confirmed that its instance is terminated", "node", node.Name, "shard", id, "reason", foreign)
	}
	return foreign == ""
}

// isTerminated queries a shard and reports whether it has terminated the instance of a Node. An
// error proves nothing, also if the shard does not know the instance or it belongs to another
// tenant.
func (c *Controller) isTerminated(ctx context.Context, id string, node *corev1.Node) bool {
	instance, err := c.shardClient.GetInstance(ctx, id, instanceOf(node))
	if err != nil && !shard.IsNotFound(err) {
		klog.FromContext(ctx).V(2).Info("Instance of a Node that does not report could not be queried", "node", node.Name, "shard", id, "err", err)
	}
	return err == nil && terminated(instance, node)
}

// confirm counts a list without the instance if its shard still reports that it is terminated.
// After the last list it deletes the Node.
func (c *Controller) confirm(ctx context.Context, node *corev1.Node, p proof) (time.Duration, error) {
	if !c.isTerminated(ctx, p.shard, node) {
		c.forget(node.Name)
		return recheckPeriod, nil
	}
	p.lists++
	if p.lists < confirmations {
		p.mark = c.groups.Relist(p.shard)
		c.set(node.Name, p)
		return listPeriod, nil
	}
	// Another attempt begins again. It is made at once only if another client has changed the Node
	// meanwhile: without the right to delete Nodes all attempts fail.
	c.forget(node.Name)
	err := c.remove(ctx, node, p.shard)
	switch {
	case apierrors.IsConflict(err):
		klog.FromContext(ctx).V(2).Info("Node of a terminated instance has changed, and is not deleted yet", "node", node.Name)
		return listPeriod, nil
	case err != nil:
		klog.FromContext(ctx).Error(err, "Node of a terminated instance was not deleted", "node", node.Name, "shard", p.shard)
	}
	return recheckPeriod, nil
}

// remove deletes a Node if the API server confirms that it is unchanged and belongs to no object
// of Cluster API, which deletes Nodes itself. The error is a conflict if the Node was changed
// meanwhile.
func (c *Controller) remove(ctx context.Context, cached *corev1.Node, shardID string) error {
	logger := klog.FromContext(ctx)
	node, err := c.readNode(ctx, cached.Name)
	if err != nil {
		return err
	}
	if node == nil || node.UID != cached.UID || node.Spec.ProviderID != cached.Spec.ProviderID ||
		plan(observation{node: node}, c.clock.Now()).step != search || !c.mayName(ctx, shardID, node) {
		return nil
	}
	owner, err := c.readOwner(ctx, node)
	if err != nil {
		return err
	}
	if owner != "" {
		logger.V(2).Info("Node of a terminated instance is left to Cluster API", "node", node.Name, "owner", owner)
		return nil
	}
	err = c.client.CoreV1().Nodes().Delete(ctx, node.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &node.UID, ResourceVersion: &node.ResourceVersion},
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("delete Node %s of a terminated instance: %w", node.Name, err)
	}
	reason := fmt.Sprintf("its instance %s is terminated, as shard %s has confirmed", instanceOf(node), shardID)
	controllers.LogDeletion(ctx, "Node", klog.KObj(node), reason, nil)
	controller.Record(c.recorder, node, reasonDeletingNode, "DeleteNode", reason)
	c.nodesDeleted.Inc()
	return nil
}

// readNode reads a Node from the API server, nil if it does not exist. The operator may list
// Nodes, and not get them.
func (c *Controller) readNode(ctx context.Context, name string) (*corev1.Node, error) {
	list, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()})
	if err != nil {
		return nil, fmt.Errorf("read Node %s: %w", name, err)
	}
	for i := range list.Items {
		if list.Items[i].Name == name {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

// readOwner returns the object of Cluster API that a Node belongs to, "" for none. Such an object
// waits until Cluster API has deleted the Node, or lists its provider id.
func (c *Controller) readOwner(ctx context.Context, node *corev1.Node) (string, error) {
	machines, err := c.capi.Machines(c.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list Machines: %w", err)
	}
	for i := range machines.Items {
		machine := &machines.Items[i]
		if machine.Status.NodeRef.Name == node.Name || providerid.Match(machine.Spec.ProviderID, node.Spec.ProviderID) {
			return "Machine " + machine.Name, nil
		}
	}
	nstanceMachines, err := c.nstance.NstanceMachines(c.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list NstanceMachines: %w", err)
	}
	for i := range nstanceMachines.Items {
		nstanceMachine := &nstanceMachines.Items[i]
		if nstanceMachine.Annotations[v1beta1.AnnotationInstanceID] == instanceOf(node) || providerid.Match(nstanceMachine.Spec.ProviderID, node.Spec.ProviderID) {
			return "NstanceMachine " + nstanceMachine.Name, nil
		}
	}
	pools, err := c.nstance.NstanceMachinePools(c.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list NstanceMachinePools: %w", err)
	}
	for i := range pools.Items {
		for _, id := range pools.Items[i].Spec.ProviderIDList {
			if providerid.Match(id, node.Spec.ProviderID) {
				return "NstanceMachinePool " + pools.Items[i].Name, nil
			}
		}
	}
	return "", nil
}
