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
	"nstance.dev/operator/pkg/controller"
)

// newStatus adds up the shard groups. pool is the pool as it now is, with its
// newest generation.
func newStatus(pool *v1beta1.NstanceMachinePool, seen observation, decided decision, ambiguous *trouble) v1beta1.NstanceMachinePoolStatus {
	status := *pool.Status.DeepCopy()
	status.ObservedGeneration = pool.Generation
	addUp(&status, seen, decided)
	status.InfrastructureMachineKind = ""
	if decided.machines.on {
		status.InfrastructureMachineKind = v1beta1.MachineKind
	}
	if shape := shapeOf(seen); shape != nil {
		status.Capacity, status.NodeInfo = capacityOf(shape), nodeInfoOf(shape)
	}

	set := func(kind string, value metav1.ConditionStatus, reason, message string) {
		controller.SetCondition(&status.Conditions, pool.Generation, kind, value, reason, message)
	}
	reachable, reason, message := reachability(seen)
	set(v1beta1.ConditionShardsReachable, reachable, reason, message)
	if seen.paused == "" {
		set(v1beta1.ConditionPaused, metav1.ConditionFalse, v1beta1.ReasonNotPaused, "")
	} else {
		set(v1beta1.ConditionPaused, metav1.ConditionTrue, v1beta1.ReasonPaused, seen.paused)
	}

	if mode := decided.machines; mode.status != "" {
		set(v1beta1.ConditionMachinesEnabled, mode.status, mode.reason, mode.message)
	}

	wrong := cmp.Or(deletionHeldUp(seen), decided.hold, ambiguous, unready(seen, decided))
	if wrong == nil {
		set(v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonReady, "")
		status.Ready = ptr.To(true)
		status.Initialization.Provisioned = ptr.To(true)
	} else {
		set(v1beta1.ConditionReady, metav1.ConditionFalse, wrong.reason, wrong.message)
	}
	return status
}

func addUp(status *v1beta1.NstanceMachinePoolStatus, seen observation, decided decision) {
	var desired, replicas, draining, blocked, reachable int32
	static := false
	var config *v1beta1.GroupConfig
	for _, group := range seen.owned {
		desired += group.Spec.Size
		replicas += ptr.Deref(group.Status.Replicas, 0)
		draining += ptr.Deref(group.Status.Draining, 0)
		blocked += ptr.Deref(group.Status.DrainsBlocked, 0)
		static = static || ptr.Deref(group.Status.IsStatic, false)
	}
	for _, shard := range seen.shards {
		if shard.group == nil || !metav1.IsControlledBy(shard.group, seen.pool) {
			continue
		}
		if config == nil {
			config = shard.group.Status.Config
		}
		if meta.IsStatusConditionTrue(shard.group.Status.Conditions, v1beta1.ConditionShardReachable) {
			reachable++
		}
	}
	if decided.sizes != nil {
		desired = 0
		for _, size := range decided.sizes {
			desired += size
		}
	}
	status.DesiredReplicas = &desired
	status.Replicas = &replicas
	status.Draining = &draining
	status.DrainsBlocked = &blocked
	status.IsStatic = &static
	status.Shards = v1beta1.ShardsSummary{Total: int32(len(seen.shards)), Reachable: reachable}
	status.Template, status.Subnets = "", nil
	if config != nil {
		status.Template, status.Subnets = config.Template, slices.Clone(config.Subnets)
	}
}

// reachability tells whether all shards are connected, and names those that are
// not. A shard of which nobody has said anything yet is not known to be away.
func reachability(seen observation) (status metav1.ConditionStatus, reason, message string) {
	reason = v1beta1.ReasonShardUnreachable
	var away, unknown []string
	for _, shard := range seen.shards {
		var connected *metav1.Condition
		if shard.group != nil {
			connected = meta.FindStatusCondition(shard.group.Status.Conditions, v1beta1.ConditionShardReachable)
		}
		switch {
		case !shard.configured:
			reason = v1beta1.ReasonUnknownShard
			away = append(away, shard.id)
		case connected == nil || connected.Status == metav1.ConditionUnknown:
			unknown = append(unknown, shard.id)
		case connected.Status == metav1.ConditionFalse:
			away = append(away, shard.id)
		}
	}
	switch {
	case len(away) > 0:
		return metav1.ConditionFalse, reason, fmt.Sprintf("not connected: %s", strings.Join(away, ", "))
	case len(unknown) > 0:
		return metav1.ConditionUnknown, v1beta1.ReasonNotSynced, fmt.Sprintf("not known yet: %s", strings.Join(unknown, ", "))
	default:
		return metav1.ConditionTrue, v1beta1.ReasonReachable, ""
	}
}

// unready is the first reason why a shard does not run what is wanted. While
// shards scale it always says the same: how far they are is in the numbers, and
// a message that counts would be written once per instance.
func unready(seen observation, decided decision) *trouble {
	var scaling *trouble
	for i, size := range decided.sizes {
		shard := seen.shards[i]
		ready := &metav1.Condition{Reason: v1beta1.ReasonScaling}
		if group := shard.group; group != nil && group.Spec.Size == size && group.Status.ObservedGeneration == group.Generation {
			ready = cmp.Or(meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionReady), ready)
		}
		switch {
		case ready.Status == metav1.ConditionTrue:
		case ready.Reason == v1beta1.ReasonScaling:
			scaling = &trouble{v1beta1.ReasonScaling, "not every shard runs the wanted number of instances yet"}
		default:
			return &trouble{ready.Reason, fmt.Sprintf("%s: %s", shard.id, ready.Message)}
		}
	}
	return cmp.Or(leaving(seen), scaling)
}

// deletionHeldUp is why a pool that is being deleted is still there: the first of
// its shard groups that its shard holds up. Those that wait for Machines do not go
// yet.
func deletionHeldUp(seen observation) *trouble {
	if seen.pool.DeletionTimestamp.IsZero() {
		return nil
	}
	return heldUp(slices.DeleteFunc(slices.Clone(seen.owned), func(group *v1beta1.NstanceShardGroup) bool {
		return len(membersOn(seen.members, group)) > 0
	}))
}

// leaving is why the group of a shard that the pool no longer names is still
// there.
func leaving(seen observation) *trouble {
	return heldUp(slices.DeleteFunc(slices.Clone(seen.owned), func(group *v1beta1.NstanceShardGroup) bool {
		return !leaves(seen.pool, group)
	}))
}

// heldUp is what the first of some shard groups that are to go waits for.
func heldUp(groups []*v1beta1.NstanceShardGroup) *trouble {
	for _, group := range groups {
		ready := meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionReady)
		if ready != nil && ready.Reason == v1beta1.ReasonDeleting {
			return &trouble{v1beta1.ReasonDeleting, fmt.Sprintf("%s: %s", group.Spec.Shard, ready.Message)}
		}
	}
	if len(groups) > 0 {
		return &trouble{v1beta1.ReasonDeleting, fmt.Sprintf("%s: the group is being removed", groups[0].Spec.Shard)}
	}
	return nil
}
