// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package why

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// shard adds what the shard group says.
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
	if lent := group.Annotations[v1beta1.AnnotationLent]; lent != "" {
		reason := Reason{Type: Lent, Message: "instances that the shard has lent, below 0 borrowed: " + lent, Source: source.field("metadata.annotations[" + v1beta1.AnnotationLent + "]")}
		reason.setWriter(group, "f:metadata", "f:annotations", "f:"+v1beta1.AnnotationLent)
		e.add(reason)
	}
	reachable := meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionShardReachable)
	if reachable != nil && reachable.Status != metav1.ConditionTrue {
		e.add(Reason{Type: ShardUnreachable, Message: reachable.Reason + ": " + reachable.Message + "; its instances stay as they are",
			Source: source.field("condition " + v1beta1.ConditionShardReachable), By: operatorManager, At: reachable.LastTransitionTime.Time})
	}
}
