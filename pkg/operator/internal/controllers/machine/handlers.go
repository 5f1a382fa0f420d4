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
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/controller"
)

// shardChanged is called when a shard was added to or removed from the
// configuration, when its cache of groups is complete, when its connection was
// opened or lost, and when the watch of its notices has settled.
func (c *Controller) shardChanged(shard string) {
	if !c.shards.Has(shard) {
		c.queue.DropShard(shard)
	}
	delay := time.Duration(0)
	if reachable, _ := c.groups.Reachable(shard); !reachable {
		delay = lostGrace
	}
	// NstanceMachines without a shard may be placed on this one now.
	c.enqueueIndexed(byShard, shard, delay)
	c.enqueueIndexed(byShard, "", delay)
}

// groupChanged is called when a group in the cache has changed. The change is relevant to
// NstanceMachines without an instance, and to pool members whose status differs from the
// shard's list.
func (c *Controller) groupChanged(shard, key string) {
	listing := c.listing(shard, key)
	for _, nstanceMachine := range c.indexed(byPoolMembership, placementKey(key, shard)) {
		if listed, missing := listing.find(nstanceMachine.Name); !upToDate(nstanceMachine, listed, missing) {
			c.queue.AddAfter(cache.MetaObjectToName(nstanceMachine), controller.BatchPeriod)
		}
	}
	for _, nstanceMachine := range c.indexed(byGroup, key) {
		if locate(nstanceMachine).instanceID == "" {
			c.queue.AddAfter(cache.MetaObjectToName(nstanceMachine), controller.BatchPeriod)
		}
	}
}

// instanceChanged is called when the notice or the drain of an instance has changed.
func (c *Controller) instanceChanged(shard, id string) {
	c.enqueueIndexed(byInstance, instanceKey(shard, id), 0)
}

// nstanceMachineChanged enqueues an NstanceMachine after every change, because the write of
// one step triggers the next step. A change of condition messages alone is not relevant: an
// error whose text differs each time would otherwise cause an endless series of syncs without
// any delay.
func (c *Controller) nstanceMachineChanged(before, after *v1beta1.NstanceMachine) {
	c.placements.changed(before, after)
	if after == nil {
		after = before
	}
	if before != nil && before.ResourceVersion != after.ResourceVersion &&
		equality.Semantic.DeepEqual(withoutMessages(before), withoutMessages(after)) {
		return
	}
	c.queue.Add(cache.MetaObjectToName(after))
}

// withoutMessages returns a copy without resource version and condition messages.
func withoutMessages(nstanceMachine *v1beta1.NstanceMachine) *v1beta1.NstanceMachine {
	nstanceMachine = nstanceMachine.DeepCopy()
	nstanceMachine.ResourceVersion = ""
	for i := range nstanceMachine.Status.Conditions {
		nstanceMachine.Status.Conditions[i].Message = ""
	}
	return nstanceMachine
}

func (c *Controller) machineChanged(before, after *clusterv1.Machine) {
	if after == nil {
		after = before
	}
	if name := capi.NstanceMachineOf(after); name != "" {
		c.queue.Add(c.key(name))
	}
}

// nodeChanged enqueues the NstanceMachines with the provider id of a Node that was added or
// deleted, has other addresses or another shard. Heartbeats are ignored.
func (c *Controller) nodeChanged(before, after *corev1.Node) {
	if before != nil && after != nil && before.ResourceVersion != after.ResourceVersion &&
		before.Spec.ProviderID == after.Spec.ProviderID &&
		before.Labels[v1beta1.LabelShard] == after.Labels[v1beta1.LabelShard] &&
		equality.Semantic.DeepEqual(before.Status.Addresses, after.Status.Addresses) {
		return
	}
	for _, node := range []*corev1.Node{before, after} {
		if node != nil && node.Spec.ProviderID != "" {
			c.enqueueIndexed(byProviderID, providerid.Key(node.Spec.ProviderID), 0)
		}
	}
}

// clusterChanged enqueues every NstanceMachine when the Cluster was created or
// deleted, was paused or unpaused, or when its infrastructure became provisioned.
func (c *Controller) clusterChanged(before, after *clusterv1.Cluster) {
	if relevantState(before) == relevantState(after) {
		return
	}
	for _, key := range c.keys() {
		c.queue.Add(key)
	}
}

// keys returns the keys of all NstanceMachines.
func (c *Controller) keys() []cache.ObjectName {
	nstanceMachines, err := c.nstanceMachineLister.List(labels.Everything())
	if err != nil {
		// The lister of a cache returns no errors.
		panic(err)
	}
	keys := make([]cache.ObjectName, len(nstanceMachines))
	for i, nstanceMachine := range nstanceMachines {
		keys[i] = cache.MetaObjectToName(nstanceMachine)
	}
	return keys
}

// relevantState returns the state of a Cluster that NstanceMachines depend on. cluster may be
// nil.
func relevantState(cluster *clusterv1.Cluster) [3]bool {
	return [3]bool{cluster != nil, cluster != nil && ptr.Deref(cluster.Spec.Paused, false), provisioned(cluster)}
}

func (c *Controller) enqueueIndexed(index, value string, delay time.Duration) {
	for _, nstanceMachine := range c.indexed(index, value) {
		c.queue.AddAfter(cache.MetaObjectToName(nstanceMachine), delay)
	}
}

func (c *Controller) key(name string) cache.ObjectName {
	return cache.NewObjectName(c.namespace, name)
}

// Indexes of NstanceMachines. With them, handlers never iterate over the whole cache.
const (
	// byShard indexes NstanceMachines by shard; the value is "" without a shard.
	byShard = "shard"
	// byGroup indexes NstanceMachines by group, except pool members.
	byGroup = "group"
	// byPoolMembership indexes pool members by placementKey.
	byPoolMembership = "poolMembership"
	// byInstance indexes NstanceMachines by instanceKey.
	byInstance = "instance"
	// byRequest indexes NstanceMachines by the requestKey of the create request in the status.
	byRequest = "request"
	// byProviderID indexes NstanceMachines by the key of the provider id that the shard
	// reported.
	byProviderID = "machineProviderID"
)

// placementKey, instanceKey and requestKey are unambiguous because identifiers have no
// slash.
func placementKey(group, shard string) string { return group + "/" + shard }
func instanceKey(shard, id string) string     { return shard + "/" + id }
func requestKey(shard, id string) string      { return shard + "/" + id }

var indexers = cache.Indexers{
	byShard: indexBy(func(nstanceMachine *v1beta1.NstanceMachine) (string, bool) {
		return locate(nstanceMachine).shardID, true
	}),
	byGroup: indexBy(func(nstanceMachine *v1beta1.NstanceMachine) (string, bool) {
		return string(nstanceMachine.Spec.GroupRef.Name), !locate(nstanceMachine).poolMember
	}),
	byPoolMembership: indexBy(func(nstanceMachine *v1beta1.NstanceMachine) (string, bool) {
		at := locate(nstanceMachine)
		return placementKey(string(nstanceMachine.Spec.GroupRef.Name), at.shardID), at.poolMember
	}),
	byInstance: indexBy(func(nstanceMachine *v1beta1.NstanceMachine) (string, bool) {
		at := locate(nstanceMachine)
		return instanceKey(at.shardID, at.instanceID), at.instanceID != ""
	}),
	byRequest: indexBy(func(nstanceMachine *v1beta1.NstanceMachine) (string, bool) {
		return requestKey(nstanceMachine.Status.Shard, nstanceMachine.Status.RequestID), nstanceMachine.Status.RequestID != ""
	}),
	byProviderID: indexBy(func(nstanceMachine *v1beta1.NstanceMachine) (string, bool) {
		return providerid.Key(nstanceMachine.Status.ProviderID), nstanceMachine.Status.ProviderID != ""
	}),
}

// indexBy returns an index function for a value that not every NstanceMachine has.
func indexBy(value func(*v1beta1.NstanceMachine) (string, bool)) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		nstanceMachine, ok := obj.(*v1beta1.NstanceMachine)
		if !ok {
			return nil, nil
		}
		if value, has := value(nstanceMachine); has {
			return []string{value}, nil
		}
		return nil, nil
	}
}

func (c *Controller) indexed(index, value string) []*v1beta1.NstanceMachine {
	return controller.Indexed[v1beta1.NstanceMachine](c.nstanceMachineIndex, index, value)
}
