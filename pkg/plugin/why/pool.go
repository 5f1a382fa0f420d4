// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package why

import (
	"cmp"
	"fmt"
	"slices"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
)

// pool adds the reasons of the pool and its MachinePool.
func (e *explainer) pool() {
	pool := e.subject.Pool
	if pool == nil {
		return
	}
	source := Source{Kind: v1beta1.PoolKind, Namespace: pool.Namespace, Name: pool.Name}
	if !pool.DeletionTimestamp.IsZero() {
		e.add(Reason{Type: PoolDeleted, Message: "the pool is being deleted", Source: source,
			ByUnknown: noDeleter, At: pool.DeletionTimestamp.Time})
	}
	e.replicas(source)
	e.configuration(pool, source)
	if pool.Spec.DeletionPolicy == v1beta1.DeletionRetain {
		reason := Reason{Type: DeletionPolicy, Message: "deletionPolicy is Retain: the instance stays when the pool is deleted",
			Source: source.field("spec.deletionPolicy")}
		reason.setWriter(pool, "f:spec", "f:deletionPolicy")
		e.add(reason)
	}
	if group := e.subject.ShardGroup; group != nil && !slices.Contains(pool.Spec.Shards, group.Spec.Shard) {
		reason := Reason{Type: ShardRemoved, Message: fmt.Sprintf("the pool no longer names shard %s", group.Spec.Shard), Source: source.field("spec.shards")}
		reason.setWriter(pool, "f:spec", "f:shards")
		e.add(reason)
	}
	e.poolConditions(pool, source)
}

func (s Source) field(name string) Source {
	s.Field = name
	return s
}

// replicas adds the replicas of the MachinePool and their writer. A write through the scale
// subresource has no writer; the event of the operator shows when the size has changed.
func (e *explainer) replicas(source Source) {
	pool, machinePool := e.subject.Pool, e.subject.MachinePool
	if machinePool == nil {
		why := cmp.Or(e.MachinePools.Unknown, "the pool has no MachinePool")
		e.add(Reason{Type: Replicas, Message: "unknown: " + why, Source: source, ByUnknown: why})
		return
	}
	reason := Reason{Type: Replicas, Source: Source{Kind: "MachinePool", Namespace: machinePool.Namespace, Name: machinePool.Name, Field: "spec.replicas"}}
	if e.reasonIs(scaleDown) && e.result.Drain.Reason != "" {
		reason.Type = ScaleDown
	}
	if replicas := machinePool.Spec.Replicas; replicas == nil {
		reason.Message = "the MachinePool has no replicas"
	} else {
		reason.Message = fmt.Sprintf("the MachinePool has %d replicas", *replicas)
	}
	if actual := pool.Status.Replicas; actual != nil {
		reason.Message += fmt.Sprintf(", and %d instances run", *actual)
	}
	reason.setWriter(machinePool, "f:spec", "f:replicas")
	if event := e.lastScaled(); event != nil {
		reason.Message += fmt.Sprintf("; the size was changed %s", event.Note)
		if reason.At.IsZero() {
			reason.At = objects.LastSeen(event)
		}
	}
	e.add(reason)
}

// lastScaled returns the last event about a change of the size of the pool.
func (e *explainer) lastScaled() *eventsv1.Event {
	var last *eventsv1.Event
	for i := range e.PoolEvents.Items {
		event := &e.PoolEvents.Items[i]
		if event.Reason == "Scaled" && (last == nil || objects.LastSeen(event).After(objects.LastSeen(last))) {
			last = event
		}
	}
	return last
}

// configuration adds the writers of the settings for which the instance is replaced.
func (e *explainer) configuration(pool *v1beta1.NstanceMachinePool, source Source) {
	if drain := e.result.Drain; drain == nil || drain.Reason != configDrift {
		return
	}
	found := false
	for _, field := range []string{"instanceType", "template", "subnets", "vars"} {
		reason := Reason{Type: Configuration, Source: source.field("spec." + field)}
		reason.setWriter(pool, "f:spec", "f:"+field)
		if reason.By == "" {
			continue
		}
		found = true
		reason.Message = fmt.Sprintf("%s of the pool was set", field)
		if field == "instanceType" {
			reason.Message = fmt.Sprintf("instanceType of the pool is %q", pool.Spec.InstanceType)
		}
		e.add(reason)
	}
	if !found {
		e.add(Reason{Type: Configuration, Message: "the pool sets nothing itself: the configuration of the shard has changed",
			Source: source, ByUnknown: "the configuration of a server is not in the API server"})
	}
}

// poolConditions adds the guards, the shortfall and the pause of a pool.
func (e *explainer) poolConditions(pool *v1beta1.NstanceMachinePool, source Source) {
	for _, kind := range []struct{ condition, reason string }{
		{v1beta1.ConditionScalingDown, Guard},
		{v1beta1.ConditionCapacityAvailable, Shortfall},
		{v1beta1.ConditionPaused, Paused},
	} {
		condition := meta.FindStatusCondition(pool.Status.Conditions, kind.condition)
		bad := metav1.ConditionTrue
		if kind.reason == Shortfall {
			bad = metav1.ConditionFalse
		}
		if condition == nil || condition.Status != bad || kind.reason == Guard && pool.Spec.ScaleDown == nil {
			continue
		}
		e.add(Reason{Type: kind.reason, Message: condition.Reason + ": " + condition.Message, Source: source.field("condition " + kind.condition),
			By: operatorManager, At: condition.LastTransitionTime.Time})
	}
}

// shard adds the reasons of the shard group.
func (e *explainer) shard() {
	group := e.subject.ShardGroup
	if group == nil {
		return
	}
	source := Source{Kind: "NstanceShardGroup", Namespace: group.Namespace, Name: group.Name}
	size := Reason{Type: ShardSize, Source: source.field("spec.size"),
		Message: fmt.Sprintf("shard %s is to run %d instances of the group", group.Spec.Shard, group.Spec.Size)}
	if running := group.Status.Replicas; running != nil {
		size.Message += fmt.Sprintf(", and runs %d", *running)
	}
	size.setWriter(group, "f:spec", "f:size")
	e.add(size)
	if id := e.result.Instance; id != "" && slices.Contains(group.Spec.RemoveFirst, id) {
		reason := Reason{Type: RemoveFirst, Message: "the shard is to delete it before other instances", Source: source.field("spec.removeFirst")}
		reason.setWriter(group, "f:spec", "f:removeFirst")
		e.add(reason)
	}
	if loan := group.Spec.Loan; loan != nil {
		reason := Reason{Type: Lent, Message: "instances that the shard has lent, below 0 borrowed: " + loan.String(), Source: source.field("spec.loan")}
		reason.setWriter(group, "f:spec", "f:loan")
		e.add(reason)
	}
	reachable := meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionShardReachable)
	if reachable != nil && reachable.Status != metav1.ConditionTrue {
		e.add(Reason{Type: ShardUnreachable, Message: reachable.Reason + ": " + reachable.Message + "; its instances stay as they are",
			Source: source.field("condition " + v1beta1.ConditionShardReachable), By: operatorManager, At: reachable.LastTransitionTime.Time})
	}
}
