// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// tellsNews tells whether a change of a shard group, other than one of its spec,
// means anything to its pool: a report of something new, or metadata that the
// pool may have to put right.
func tellsNews(before, after *v1beta1.NstanceShardGroup) bool {
	return !maps.Equal(before.Labels, after.Labels) ||
		!slices.Equal(before.Finalizers, after.Finalizers) ||
		!equality.Semantic.DeepEqual(before.OwnerReferences, after.OwnerReferences) ||
		reportsNews(&before.Status, &after.Status)
}

// reportsNews tells whether a shard group's new status changes anything about
// its pool. That a shard group is no longer ready because it scales is no news:
// its pool has asked for that, or the number of instances changes with it.
func reportsNews(before, after *v1beta1.NstanceShardGroupStatus) bool {
	if !ptr.Equal(before.Replicas, after.Replicas) ||
		!ptr.Equal(before.Draining, after.Draining) ||
		!ptr.Equal(before.DrainsBlocked, after.DrainsBlocked) ||
		!ptr.Equal(before.IsStatic, after.IsStatic) ||
		!slices.Equal(before.ProviderIDs, after.ProviderIDs) ||
		!equality.Semantic.DeepEqual(before.Config, after.Config) {
		return true
	}
	scaling := beganScaling(before.Conditions, after.Conditions)
	if !scaling && before.ObservedGeneration != after.ObservedGeneration {
		return true
	}
	for _, now := range after.Conditions {
		if scaling && now.Type == v1beta1.ConditionReady {
			continue
		}
		if now.Type == v1beta1.ConditionDrainsProgressing {
			// The pool has the numbers.
			continue
		}
		was := meta.FindStatusCondition(before.Conditions, now.Type)
		if was == nil || was.Status != now.Status || was.Reason != now.Reason || was.Message != now.Message {
			return true
		}
	}
	return false
}

// beganScaling tells whether a shard group scales after nothing worse than
// having been ready.
func beganScaling(before, after []metav1.Condition) bool {
	now := meta.FindStatusCondition(after, v1beta1.ConditionReady)
	if now == nil || now.Status != metav1.ConditionFalse || now.Reason != v1beta1.ReasonScaling {
		return false
	}
	was := meta.FindStatusCondition(before, v1beta1.ConditionReady)
	return was == nil || was.Status == metav1.ConditionTrue || was.Reason == v1beta1.ReasonScaling
}
