// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/shortfall"
)

// newStatus adds up the shard groups. pool is the pool with its newest generation.
func newStatus(pool *v1beta1.NstanceMachinePool, observed observation, d decision, wrongID *problem) v1beta1.NstanceMachinePoolStatus {
	status := *pool.Status.DeepCopy()
	status.ObservedGeneration = pool.Generation
	addUp(&status, observed, d)
	status.InfrastructureMachineKind = ""
	if d.machines.on {
		status.InfrastructureMachineKind = v1beta1.MachineKind
	}
	if shape := shapeOf(observed); shape != nil {
		status.Capacity, status.NodeInfo = controllers.CapacityOf(shape), controllers.NodeInfoOf(shape)
	}

	set := func(kind string, value metav1.ConditionStatus, reason, message string) {
		controller.SetCondition(&status.Conditions, pool.Generation, kind, value, reason, message)
	}
	reachable, reason, message := reachability(observed)
	set(v1beta1.ConditionShardsReachable, reachable, reason, message)
	if observed.paused == "" {
		set(v1beta1.ConditionPaused, metav1.ConditionFalse, v1beta1.ReasonNotPaused, "")
	} else {
		set(v1beta1.ConditionPaused, metav1.ConditionTrue, v1beta1.ReasonPaused, observed.paused)
	}

	if !d.statusOnly {
		up, down := scaling(observed, d)
		set(up.Type, up.Status, up.Reason, up.Message)
		set(down.Type, down.Status, down.Reason, down.Message)
	}
	switch {
	case pool.Spec.Rotation == nil:
		meta.RemoveStatusCondition(&status.Conditions, v1beta1.ConditionRollingOut)
	case d.rotation != nil && d.rotation.known():
		rolling := d.rotation.condition(*status.DesiredReplicas)
		set(rolling.Type, rolling.Status, rolling.Reason, rolling.Message)
	}
	switch {
	case pool.Spec.Remediation == nil:
		meta.RemoveStatusCondition(&status.Conditions, v1beta1.ConditionRemediating)
	case observed.remediation != nil && !d.statusOnly && pool.DeletionTimestamp.IsZero():
		unhealthy := observed.remediation.condition()
		set(unhealthy.Type, unhealthy.Status, unhealthy.Reason, unhealthy.Message)
	}
	if len(pool.Spec.Candidates) == 0 {
		meta.RemoveStatusCondition(&status.Conditions, v1beta1.ConditionPreferredInstances)
	} else if best := preferredInstances(observed); best != nil {
		set(best.Type, best.Status, best.Reason, best.Message)
	}
	switch mode := d.machines; {
	case mode.unwanted:
		meta.RemoveStatusCondition(&status.Conditions, v1beta1.ConditionMachinesEnabled)
	case mode.status != "":
		set(v1beta1.ConditionMachinesEnabled, mode.status, mode.reason, mode.message)
	}
	capacity := shortfall.Condition(pool, observed.shortfalls(), loans(observed, d))
	set(capacity.Type, capacity.Status, capacity.Reason, capacity.Message)
	var missing *problem
	if late := observed.nodeless.Message(); late != "" {
		missing = &problem{v1beta1.ReasonNodeMissing, late}
	}
	switch {
	case missing != nil:
		set(v1beta1.ConditionNodesJoined, metav1.ConditionFalse, missing.reason, missing.message)
	case observed.nodeless.Known && meta.FindStatusCondition(status.Conditions, v1beta1.ConditionNodesJoined) != nil:
		set(v1beta1.ConditionNodesJoined, metav1.ConditionTrue, v1beta1.ReasonNodesJoined, "")
	}
	wrong := cmp.Or(deletionBlocked(observed), d.blocked, wrongID, shardProblem(observed, d), missing)
	switch unread := unreported(observed); {
	case wrong != nil:
		set(v1beta1.ConditionReady, metav1.ConditionFalse, wrong.reason, wrong.message)
	case unread != "" && !meta.IsStatusConditionTrue(pool.Status.Conditions, v1beta1.ConditionReady):
		set(v1beta1.ConditionReady, metav1.ConditionUnknown, v1beta1.ReasonNotSynced, unread)
	default:
		set(v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonReady, "")
	}
	if provisioned(observed, *status.DesiredReplicas) {
		status.Ready = ptr.To(true)
		status.Initialization.Provisioned = ptr.To(true)
	}
	return status
}

// provisioned reports whether Cluster API can use the pool: a shard group has reported
// an instance, or all have reported and the pool has no replicas. It does not wait for the
// other shards, because Cluster API copies no provider id before, and so finds no Node.
func provisioned(observed observation, desired int32) bool {
	for _, group := range observed.shardGroups {
		if ptr.Deref(group.Status.Replicas, 0) > 0 {
			return true
		}
	}
	return desired == 0 && len(observed.shardGroups) > 0 && allReported(observed)
}

func addUp(status *v1beta1.NstanceMachinePoolStatus, observed observation, d decision) {
	var desired, replicas, draining, blocked, reachable int32
	static := false
	status.StaticShards = nil
	var configs []*v1beta1.GroupConfig
	for _, group := range observed.shardGroups {
		desired += group.Spec.Size
		replicas += ptr.Deref(group.Status.Replicas, 0)
		draining += ptr.Deref(group.Status.DrainingReplicas, 0)
		blocked += ptr.Deref(group.Status.BlockedReplicas, 0)
		static = static || ptr.Deref(group.Status.IsStatic, false)
	}
	for _, shard := range observed.shards {
		if shard.group == nil || !metav1.IsControlledBy(shard.group, observed.pool) {
			continue
		}
		if reported := shard.group.Status.Config; reported != nil {
			configs = append(configs, reported)
		}
		if meta.IsStatusConditionTrue(shard.group.Status.Conditions, v1beta1.ConditionShardReachable) {
			reachable++
		}
		if shard.configured && ptr.Deref(shard.group.Status.IsStatic, false) {
			status.StaticShards = append(status.StaticShards, v1beta1.Identifier(shard.id))
		}
	}
	if d.sizes != nil {
		desired = 0
		for _, size := range d.sizes {
			desired += size
		}
	}
	status.DesiredReplicas = &desired
	status.Replicas = &replicas
	status.DrainingReplicas = &draining
	status.BlockedReplicas = &blocked
	status.IsStatic = &static
	status.MinReplicas = minReplicas(observed)
	status.Shards = v1beta1.ShardsSummary{Total: ptr.To(int32(len(observed.shards))), Reachable: &reachable}
	status.Template, status.Subnets = "", nil
	if len(configs) == 0 {
		return
	}
	first := configs[0]
	if !slices.ContainsFunc(configs, func(c *v1beta1.GroupConfig) bool { return c.Template != first.Template }) {
		status.Template = first.Template
	}
	if !slices.ContainsFunc(configs, func(c *v1beta1.GroupConfig) bool { return !slices.Equal(c.Subnets, first.Subnets) }) {
		status.Subnets = slices.Clone(first.Subnets)
	}
}

// reachability returns whether all shards are connected, and names the others. Shards
// without a report are unknown.
func reachability(observed observation) (status metav1.ConditionStatus, reason, message string) {
	reason = v1beta1.ReasonShardUnreachable
	var unreachable, unknown []string
	for _, shard := range observed.shards {
		var connected *metav1.Condition
		if shard.group != nil {
			connected = meta.FindStatusCondition(shard.group.Status.Conditions, v1beta1.ConditionShardReachable)
		}
		switch {
		case !shard.configured:
			reason = v1beta1.ReasonUnknownShard
			unreachable = append(unreachable, shard.id)
		case connected == nil || connected.Status == metav1.ConditionUnknown:
			unknown = append(unknown, shard.id)
		case connected.Status == metav1.ConditionFalse:
			serious := connected.Reason == v1beta1.ReasonWrongShard || connected.Reason == v1beta1.ReasonOtherCluster
			if serious && reason == v1beta1.ReasonShardUnreachable {
				reason = connected.Reason
			}
			unreachable = append(unreachable, shard.id)
		}
	}
	switch {
	case len(unreachable) > 0:
		return metav1.ConditionFalse, reason, fmt.Sprintf("not connected: %s", strings.Join(unreachable, ", "))
	case len(unknown) > 0:
		return metav1.ConditionUnknown, v1beta1.ReasonNotSynced, fmt.Sprintf("not known yet: %s", strings.Join(unknown, ", "))
	default:
		return metav1.ConditionTrue, v1beta1.ReasonReachable, ""
	}
}

// shardProblem returns the first reason why a shard group is not ready. A shard that creates
// or removes instances is ready.
func shardProblem(observed observation, d decision) *problem {
	for i := range d.sizes {
		shard := observed.shards[i]
		if shard.group == nil {
			continue
		}
		ready := meta.FindStatusCondition(shard.group.Status.Conditions, v1beta1.ConditionReady)
		if ready != nil && ready.Status == metav1.ConditionFalse {
			return &problem{ready.Reason, fmt.Sprintf("%s: %s", shard.id, ready.Message)}
		}
	}
	return removalBlocked(observed)
}

// unreported names the shards whose shard groups have not reported yet whether they are
// ready, "" if all have.
func unreported(observed observation) string {
	unread := idsOf(observed.shards, func(shard shardState) bool {
		if shard.group == nil {
			return true
		}
		ready := meta.FindStatusCondition(shard.group.Status.Conditions, v1beta1.ConditionReady)
		return ready == nil || ready.Status == metav1.ConditionUnknown
	})
	if len(unread) == 0 {
		return ""
	}
	return "not known yet: " + strings.Join(unread, ", ")
}

// scaling returns the conditions ScalingUp and ScalingDown. A shard that has not reported its
// instances counts as if it had none.
func scaling(observed observation, d decision) (up, down metav1.Condition) {
	var fewer, more []string
	for i := range observed.shards {
		shard := &observed.shards[i]
		var size, running int32
		if shard.group != nil {
			size, running = shard.group.Spec.Size, ptr.Deref(shard.group.Status.Replicas, 0)
		}
		if d.sizes != nil {
			size = d.sizes[i]
		}
		switch {
		case running < size:
			fewer = append(fewer, shard.id)
		case running > size:
			more = append(more, shard.id)
		}
	}
	for _, group := range observed.shardGroups {
		if shardRemoved(observed.pool, group) {
			more = append(more, string(group.Spec.Shard))
		}
	}
	up = metav1.Condition{Type: v1beta1.ConditionScalingUp, Status: metav1.ConditionFalse, Reason: v1beta1.ReasonNotScalingUp}
	if len(fewer) > 0 {
		up.Status, up.Reason = metav1.ConditionTrue, v1beta1.ReasonScalingUp
		up.Message = "fewer instances run than are wanted on " + strings.Join(fewer, ", ")
	}
	down = metav1.Condition{Type: v1beta1.ConditionScalingDown, Status: metav1.ConditionFalse, Reason: v1beta1.ReasonNotScalingDown}
	switch {
	case d.scalingDown != nil:
		down.Status, down.Reason, down.Message = metav1.ConditionTrue, d.scalingDown.reason, d.scalingDown.message
	case len(more) > 0:
		down.Status, down.Reason = metav1.ConditionTrue, v1beta1.ReasonRemoving
		down.Message = "instances are being removed on " + strings.Join(more, ", ")
	}
	return up, down
}

// deletionBlocked returns why the deletion of a pool waits: for the first shard group
// that its shard blocks. Shard groups that wait for Machines are not deleted yet.
func deletionBlocked(observed observation) *problem {
	if observed.pool.DeletionTimestamp.IsZero() {
		return nil
	}
	return blockedBy(slices.DeleteFunc(slices.Clone(observed.shardGroups), func(group *v1beta1.NstanceShardGroup) bool {
		return len(onShardOf(observed.nstanceMachines, group)) > 0
	}))
}

// removalBlocked returns why the group on a shard that the pool no longer names cannot be
// removed, nil if it is being removed.
func removalBlocked(observed observation) *problem {
	for _, group := range observed.shardGroups {
		if !shardRemoved(observed.pool, group) {
			continue
		}
		conditions := group.Status.Conditions
		ready := meta.FindStatusCondition(conditions, v1beta1.ConditionReady)
		if ready == nil {
			continue
		}
		ahead := ready.Reason == v1beta1.ReasonShardAhead
		if ahead || meta.IsStatusConditionFalse(conditions, v1beta1.ConditionShardReachable) || meta.IsStatusConditionFalse(conditions, v1beta1.ConditionDrainsProgressing) {
			return &problem{ready.Reason, fmt.Sprintf("%s: %s", group.Spec.Shard, ready.Message)}
		}
	}
	return nil
}

// blockedBy returns why the first of some shard groups in deletion waits, nil if groups is
// empty.
func blockedBy(groups []*v1beta1.NstanceShardGroup) *problem {
	for _, group := range groups {
		ready := meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionReady)
		if ready != nil && (ready.Reason == v1beta1.ReasonDeleting || ready.Reason == v1beta1.ReasonShardAhead) {
			return &problem{ready.Reason, fmt.Sprintf("%s: %s", group.Spec.Shard, ready.Message)}
		}
	}
	if len(groups) > 0 {
		return &problem{v1beta1.ReasonDeleting, fmt.Sprintf("%s: the group is being removed", groups[0].Spec.Shard)}
	}
	return nil
}

// providerIDs returns the ids of all instances of the shard groups, sorted, because
// Cluster API compares the list in order. Each is written as on its Node, because
// Cluster API finds the Node by comparing bytes (docs/capi.md#provider-ids). While no Node
// or several Nodes match, an id stays written as it is in before. A new id is written as
// the server reports it, unless the shard may not name its Node: it is left out.
//
// Cluster API deletes the Node of an id that is removed from the list. If the groups
// are not complete, no id is removed.
func (c *Controller) providerIDs(before []string, groups []*v1beta1.NstanceShardGroup, complete bool) (ids []string, wrong *problem) {
	listed := byKey(before)
	for _, group := range groups {
		for _, id := range group.Status.ProviderIDs {
			nodes, foreign := c.nodes.OfInstance(string(group.Spec.Shard), id)
			as := asListed(listed[providerid.Key(id)], id)
			switch {
			case foreign != "":
				wrong = cmp.Or(wrong, &problem{v1beta1.ReasonNodeOfOtherShard, foreign})
				if !slices.Contains(before, as) {
					continue
				}
			case len(nodes) == 1:
				as = nodes[0].Spec.ProviderID
			case len(nodes) > 1:
				wrong = cmp.Or(wrong, &problem{v1beta1.ReasonAmbiguousProviderID,
					fmt.Sprintf("provider id %q matches %d Nodes", id, len(nodes))})
			}
			ids = append(ids, as)
		}
	}
	if !complete {
		reported := byKey(ids)
		for _, id := range before {
			ids = append(ids, asListed(reported[providerid.Key(id)], id))
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), wrong
}

// allReported reports whether every shard of the pool has a shard group that has
// reported its instances. A new shard group has not, nor has a shard group that a backup
// restored without its status. While the pool is being deleted, a shard without a
// shard group has no instances.
func allReported(observed observation) bool {
	deleting := !observed.pool.DeletionTimestamp.IsZero()
	for _, shard := range observed.shards {
		if shard.group == nil && !deleting || shard.group != nil && shard.group.Status.Replicas == nil {
			return false
		}
		if shard.group != nil && !metav1.IsControlledBy(shard.group, observed.pool) {
			// The pool does not count the instances of a shard group that it does not own.
			return false
		}
	}
	return true
}

// byKey groups provider ids that may name the same instance.
func byKey(ids []string) map[string][]string {
	grouped := make(map[string][]string, len(ids))
	for _, id := range ids {
		key := providerid.Key(id)
		grouped[key] = append(grouped[key], id)
	}
	return grouped
}

// asListed returns the first of listed that names the same instance as id, or id.
func asListed(listed []string, id string) string {
	at := slices.IndexFunc(listed, func(other string) bool { return providerid.Match(id, other) })
	if at < 0 {
		return id
	}
	return listed[at]
}
