// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/providerid"
)

// ShardChanged is to be called when a shard was configured or removed, became
// synced, when its connection came or went, and when the watch of its instances
// has settled.
func (c *Controller) ShardChanged(shard string) {
	delay := time.Duration(0)
	if reachable, _ := c.groups.Reachable(shard); !reachable {
		delay = lostGrace
	}
	// Those that have no shard yet may take this one now.
	for _, where := range []string{shard, ""} {
		for _, machine := range controller.Indexed[v1beta1.NstanceMachine](c.machineIndex, byShard, where) {
			c.queue.AddAfter(cache.MetaObjectToName(machine), delay)
		}
	}
}

// GroupChanged is to be called when the cache of a shard's groups has changed. Of
// single machines only those without an instance care for their group, and of the
// members of a pool those of which the shard has news.
func (c *Controller) GroupChanged(shard, key string) {
	listing := c.listing(shard, key)
	for _, machine := range controller.Indexed[v1beta1.NstanceMachine](c.machineIndex, byMembership, placementKey(key, shard)) {
		if listed, missing := listing.find(machine.Name); !reports(machine, listed, missing) {
			c.queue.AddAfter(cache.MetaObjectToName(machine), controller.BatchPeriod)
		}
	}
	for _, machine := range controller.Indexed[v1beta1.NstanceMachine](c.machineIndex, byGroup, key) {
		if machine.Status.InstanceID == "" {
			c.queue.AddAfter(cache.MetaObjectToName(machine), controller.BatchPeriod)
		}
	}
}

// InstanceChanged is to be called when there is news of an instance: a notice of
// its shard, or how its drain gets on.
func (c *Controller) InstanceChanged(shard, id string) {
	for _, machine := range controller.Indexed[v1beta1.NstanceMachine](c.machineIndex, byInstance, instanceKey(shard, id)) {
		c.queue.Add(cache.MetaObjectToName(machine))
	}
}

// machineChanged wakes a machine on every change: each step writes down what it
// did, and what it wrote brings about the next. Only other words for the same
// trouble wake nobody: of an error whose text is never twice the same each would
// bring about the next, without any delay.
func (c *Controller) machineChanged(before, after *v1beta1.NstanceMachine) {
	if after == nil {
		after = before
	}
	if before != nil && before.ResourceVersion != after.ResourceVersion &&
		equality.Semantic.DeepEqual(withoutWords(before), withoutWords(after)) {
		return
	}
	c.queue.Add(cache.MetaObjectToName(after))
}

// withoutWords is a machine without the messages of its conditions.
func withoutWords(machine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	machine = machine.DeepCopy()
	machine.ResourceVersion = ""
	for i := range machine.Status.Conditions {
		machine.Status.Conditions[i].Message = ""
	}
	return machine
}

func (c *Controller) ownerChanged(before, after *clusterv1.Machine) {
	if after == nil {
		after = before
	}
	if name := capi.NstanceMachineOf(after); name != "" {
		c.queue.Add(c.key(name))
	}
}

// nodeChanged wakes the machines that have the provider id of a Node that came,
// went or has other addresses. Its heartbeats wake nobody.
func (c *Controller) nodeChanged(before, after *corev1.Node) {
	if before != nil && after != nil && before.ResourceVersion != after.ResourceVersion &&
		before.Spec.ProviderID == after.Spec.ProviderID &&
		equality.Semantic.DeepEqual(before.Status.Addresses, after.Status.Addresses) {
		return
	}
	for _, node := range []*corev1.Node{before, after} {
		if node == nil || node.Spec.ProviderID == "" {
			continue
		}
		for _, machine := range controller.Indexed[v1beta1.NstanceMachine](c.machineIndex, byProviderID, providerid.Key(node.Spec.ProviderID)) {
			c.queue.Add(cache.MetaObjectToName(machine))
		}
	}
}

// clusterChanged wakes every machine when the Cluster came or went, was paused or
// goes on, or when its infrastructure is there.
func (c *Controller) clusterChanged(before, after *clusterv1.Cluster) {
	if clusterState(before) == clusterState(after) {
		return
	}
	machines, err := c.machineLister.List(labels.Everything())
	if err != nil {
		// A lister of a cache gives no errors.
		panic(err)
	}
	for _, machine := range machines {
		c.queue.Add(cache.MetaObjectToName(machine))
	}
}

// clusterState is what matters to machines of a Cluster that may be nil.
func clusterState(cluster *clusterv1.Cluster) [3]bool {
	return [3]bool{cluster != nil, cluster != nil && ptr.Deref(cluster.Spec.Paused, false), provisioned(cluster)}
}
