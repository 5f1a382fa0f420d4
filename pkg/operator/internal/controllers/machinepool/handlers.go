// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// shardChanged enqueues the pools of a shard that was configured or removed, became
// synced, or whose connection changed.
func (c *Controller) shardChanged(shard string) {
	for _, pool := range c.poolIndex.OfShard(shard) {
		c.queue.Add(cache.MetaObjectToName(pool))
	}
}

// poolChanged enqueues a pool with a new spec or new metadata. A new status is the
// controller's own, and a sync for it would shorten the batch of reports of shards; the resync
// reverts what other writers change in it. What a user has changed is urgent: it does not wait
// behind the pools of a shard that is lost.
func (c *Controller) poolChanged(before, after *v1beta1.NstanceMachinePool) {
	switch {
	case after == nil:
		c.queue.Add(cache.MetaObjectToName(before))
	case before != nil && controllers.PauseChanged(before, after):
		c.enqueueWithShardGroups(after.Name)
	case before == nil || changedByUser(before, after):
		c.queue.AddUrgent(cache.MetaObjectToName(after))
	case before.Generation != after.Generation || before.ResourceVersion == after.ResourceVersion ||
		!slices.Equal(before.Finalizers, after.Finalizers) ||
		!equality.Semantic.DeepEqual(before.OwnerReferences, after.OwnerReferences) ||
		!maps.Equal(before.Labels, after.Labels):
		c.queue.Add(cache.MetaObjectToName(after))
	}
}

// changedByUser reports whether a user has deleted a pool or changed its spec. The operator itself
// writes the provider ids in it, of every pool of a shard that is lost or returns.
func changedByUser(before, after *v1beta1.NstanceMachinePool) bool {
	if before.Generation == after.Generation {
		return false
	}
	spec := after.Spec
	spec.ProviderIDList = before.Spec.ProviderIDList
	return before.DeletionTimestamp.IsZero() != after.DeletionTimestamp.IsZero() || !equality.Semantic.DeepEqual(before.Spec, spec)
}

// shardGroupChanged enqueues the pool of a shard group. Instances start one by one,
// and shards in turn; the pool takes their reports in batches, together
// with the first report of a new shard group.
func (c *Controller) shardGroupChanged(before, after *v1beta1.NstanceShardGroup) {
	group := after
	if group == nil {
		group = before
	}
	pool := poolOf(group)
	if pool == "" && before != nil {
		pool = poolOf(before)
	}
	if pool == "" {
		// The pool of the group adopts a shard group without an owner.
		pool = string(group.Spec.Group)
	}
	switch {
	case after == nil || before != nil && before.Generation != after.Generation:
		c.queue.Add(c.key(pool))
	case before == nil || before.ResourceVersion == after.ResourceVersion || relevantChange(before, after):
		c.queue.AddAfter(c.key(pool), shardGroupBatch)
	}
}

// relevantChange reports whether a change of a shard group outside of its spec matters
// to its pool: a new report, or metadata that the pool may revert.
func relevantChange(before, after *v1beta1.NstanceShardGroup) bool {
	return !maps.Equal(before.Labels, after.Labels) ||
		!slices.Equal(before.Finalizers, after.Finalizers) ||
		!equality.Semantic.DeepEqual(before.OwnerReferences, after.OwnerReferences) ||
		relevantStatusChange(&before.Status, &after.Status)
}

// relevantStatusChange reports whether the new status of a shard group changes
// anything about its pool.
func relevantStatusChange(before, after *v1beta1.NstanceShardGroupStatus) bool {
	if !ptr.Equal(before.Replicas, after.Replicas) ||
		!ptr.Equal(before.DrainingReplicas, after.DrainingReplicas) ||
		!ptr.Equal(before.BlockedReplicas, after.BlockedReplicas) ||
		!ptr.Equal(before.IsStatic, after.IsStatic) ||
		!ptr.Equal(before.MinReplicas, after.MinReplicas) ||
		!slices.Equal(before.ProviderIDs, after.ProviderIDs) ||
		!equality.Semantic.DeepEqual(before.Config, after.Config) {
		return true
	}
	return conditionsDiffer(before.Conditions, after.Conditions) || conditionsDiffer(after.Conditions, before.Conditions)
}

// conditionsDiffer reports whether a condition of one list is missing in the other, or different
// there. The pool has the numbers of DrainsProgressing.
func conditionsDiffer(conditions, others []metav1.Condition) bool {
	return slices.ContainsFunc(conditions, func(condition metav1.Condition) bool {
		other := meta.FindStatusCondition(others, condition.Type)
		return condition.Type != v1beta1.ConditionDrainsProgressing &&
			(other == nil || other.Status != condition.Status || other.Reason != condition.Reason || other.Message != condition.Message)
	})
}

// machinePoolChanged enqueues the pool that a MachinePool refers to, and the pool of
// its name, which has no MachinePool while this MachinePool refers to another object.
// A change matters if it concerns the replicas, the bootstrap data, the cluster autoscaler, a
// pause or a deletion, and is urgent. Cluster API writes the status.
func (c *Controller) machinePoolChanged(before, after *clusterv1.MachinePool) {
	enqueue := func(pool string) { c.queue.AddUrgent(c.key(pool)) }
	if before != nil && after != nil {
		if before.ResourceVersion == after.ResourceVersion {
			enqueue = func(pool string) { c.queue.Add(c.key(pool)) }
		}
		switch {
		case controllers.PauseChanged(before, after):
			enqueue = c.enqueueWithShardGroups
		case before.ResourceVersion != after.ResourceVersion &&
			ptr.Equal(before.Spec.Replicas, after.Spec.Replicas) && capi.ReplicasOwned(before) == capi.ReplicasOwned(after) &&
			before.DeletionTimestamp.IsZero() == after.DeletionTimestamp.IsZero() &&
			capi.Autoscaled(before) == capi.Autoscaled(after) &&
			capi.PoolOf(before) == capi.PoolOf(after) && unusedBootstrap(before) == unusedBootstrap(after):
			return
		}
	}
	for _, machinePool := range []*clusterv1.MachinePool{before, after} {
		if machinePool == nil {
			continue
		}
		enqueue(machinePool.Name)
		if pool := capi.PoolOf(machinePool); pool != "" {
			enqueue(pool)
		}
	}
}

// nstanceMachineChanged enqueues the pool of an nstanceMachine that is being deleted
// or was deleted: the deletion of the pool may wait for that.
func (c *Controller) nstanceMachineChanged(before, after *v1beta1.NstanceMachine) {
	nstanceMachine := after
	switch {
	case after == nil:
		nstanceMachine = before
	case after.DeletionTimestamp.IsZero(), before != nil && !before.DeletionTimestamp.IsZero():
		return
	}
	if pool := controllers.PoolOf(nstanceMachine); pool != nil {
		c.queue.Add(c.key(pool.Name))
	}
}

// nodeChanged enqueues the pools that have an instance with the Node's provider id.
func (c *Controller) nodeChanged(before, after *corev1.Node) {
	if before != nil && after != nil && before.Spec.ProviderID == after.Spec.ProviderID &&
		before.Labels[v1beta1.LabelShard] == after.Labels[v1beta1.LabelShard] {
		return
	}
	for _, node := range []*corev1.Node{before, after} {
		if node == nil || node.Spec.ProviderID == "" {
			continue
		}
		for _, group := range c.nodes.ShardGroupsWith(node.Spec.ProviderID) {
			if pool := poolOf(group); pool != "" {
				c.queue.AddAfter(c.key(pool), shardGroupBatch)
			}
		}
	}
}

// readinessChanged enqueues the pools with guards that have an instance with the Node's
// provider id. nodeChanged handles other changes of the Node.
func (c *Controller) readinessChanged(before, after *corev1.Node) {
	if before == nil || after == nil || after.Spec.ProviderID == "" {
		return
	}
	was, is := controllers.ReadyCondition(before), controllers.ReadyCondition(after)
	if was.Status == is.Status && was.LastTransitionTime.Equal(&is.LastTransitionTime) {
		return
	}
	for _, group := range c.nodes.ShardGroupsWith(after.Spec.ProviderID) {
		c.enqueueGuarded(group)
	}
}

// instancesChanged enqueues the pool of a cached group if it has guards, or a policy for its rotation or
// for remediation: they count the instances that the shard group does not report.
func (c *Controller) instancesChanged(shard, key string) {
	if group, err := c.shardGroupLister.Get(v1beta1.ShardGroupName(key, shard)); err == nil {
		c.enqueueGuarded(group)
	}
}

// enqueueGuarded enqueues the pool of a shard group if it has guards, or a policy for its rotation or for
// remediation.
func (c *Controller) enqueueGuarded(group *v1beta1.NstanceShardGroup) {
	name := poolOf(group)
	if name == "" {
		return
	}
	if pool, err := c.poolLister.Get(name); err == nil && (pool.Spec.ScaleDown != nil || pool.Spec.Rotation != nil || pool.Spec.Remediation != nil) {
		c.queue.AddAfter(c.key(name), shardGroupBatch)
	}
}

// clusterChanged enqueues every pool when the Cluster is created, paused, unpaused or
// deleted. Its other fields do not matter.
func (c *Controller) clusterChanged(before, after *clusterv1.Cluster) {
	if before != nil && after != nil &&
		ptr.Deref(before.Spec.Paused, false) == ptr.Deref(after.Spec.Paused, false) &&
		before.DeletionTimestamp.IsZero() == after.DeletionTimestamp.IsZero() {
		return
	}
	for _, key := range c.keys() {
		c.enqueueWithShardGroups(key.Name)
	}
}

// keys returns the keys of all pools.
func (c *Controller) keys() []cache.ObjectName {
	pools, err := c.poolLister.List(labels.Everything())
	if err != nil {
		// A lister of a cache returns no errors (https://pkg.go.dev/k8s.io/client-go/tools/cache#ListAll).
		panic(err)
	}
	keys := make([]cache.ObjectName, len(pools))
	for i, pool := range pools {
		keys[i] = cache.MetaObjectToName(pool)
	}
	return keys
}

// enqueueWithShardGroups enqueues a pool, and calls the pause handlers for its shard
// groups.
func (c *Controller) enqueueWithShardGroups(pool string) {
	c.queue.Add(c.key(pool))
	for _, group := range c.members.ShardGroupsOfName(pool) {
		for _, handler := range c.pauseHandlers {
			handler(cache.MetaObjectToName(group))
		}
	}
}

// groupChanged enqueues the pool of a cached group of a shard if the group changed in
// what the pool reads from the cache itself. It gets the rest from its shard groups.
func (c *Controller) groupChanged(shard, key string) {
	group, _ := c.groups.Get(shard, key)
	if !c.lastReported.set(groupOnShard{shard, key}, groupReport{
		group.ListsInstances, group.Shape, group.Shortfall, group.Candidates, group.CandidateUse,
	}) {
		return
	}
	shardGroup, err := c.shardGroupLister.Get(v1beta1.ShardGroupName(key, shard))
	if err != nil {
		// The pool reads the cache after it created the shard group.
		return
	}
	if pool := poolOf(shardGroup); pool != "" {
		c.queue.AddAfter(c.key(pool), shardGroupBatch)
	}
}

// lastReported has the last reports of servers, so that a change of another field of a
// group enqueues no pool. The zero value is empty.
type lastReported struct {
	mu      sync.Mutex
	reports map[groupOnShard]groupReport
}

type groupOnShard struct{ shard, key string }

// groupReport is the part of a group that no shard group has.
type groupReport struct {
	listsInstances bool
	node           *shard.NodeShape
	shortfall      shard.Shortfall
	// The condition PreferredInstances is computed from candidates and use.
	candidates []shard.Candidate
	use        []shard.CandidateUse
}

func (r groupReport) equal(other groupReport) bool {
	return r.listsInstances == other.listsInstances && r.node.Equal(other.node) && r.shortfall == other.shortfall &&
		shard.EqualCandidates(r.candidates, other.candidates) && slices.Equal(r.use, other.use)
}

// set records a report, and reports whether it differs from the last one.
func (l *lastReported) set(group groupOnShard, now groupReport) (changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reports[group].equal(now) {
		return false
	}
	if l.reports == nil {
		l.reports = make(map[groupOnShard]groupReport)
	}
	l.reports[group] = now
	return true
}

func (c *Controller) key(name string) cache.ObjectName {
	return cache.NewObjectName(c.namespace, name)
}

// poolOf returns the name of the pool that owns a shard group, "" if no pool does.
func poolOf(group *v1beta1.NstanceShardGroup) string {
	if owner := controllers.PoolOwning(group); owner != nil {
		return owner.Name
	}
	return ""
}
