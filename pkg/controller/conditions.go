// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

// FieldManager owns every field that the operator writes.
const FieldManager = "nstance-operator"

// Apply are the options of every server-side apply. Force reverts changes by other
// writers: the operator owns each field that it applies.
var Apply = metav1.ApplyOptions{FieldManager: FieldManager, Force: true}

// maxMessage is the longest message of a condition that the CRDs allow.
const maxMessage = 32768

// SetCondition sets one condition of a status that was computed from generation.
// Its transition time changes only when its status does.
func SetCondition(conditions *[]metav1.Condition, generation int64, kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(conditions, metav1.Condition{
		Type:               kind,
		Status:             status,
		Reason:             reason,
		Message:            truncate(message, maxMessage),
		ObservedGeneration: generation,
	})
}

// UnreachableReason returns the reason of a condition about a shard that err made
// unreachable.
func UnreachableReason(err error) string {
	switch {
	case shard.IsWrongServer(err):
		return v1beta1.ReasonWrongShard
	case shard.IsOtherCluster(err):
		return v1beta1.ReasonOtherCluster
	}
	return v1beta1.ReasonShardUnreachable
}

// ApplyConditions returns conditions as apply configurations.
func ApplyConditions(conditions []metav1.Condition) []*metav1ac.ConditionApplyConfiguration {
	applied := make([]*metav1ac.ConditionApplyConfiguration, 0, len(conditions))
	for _, c := range conditions {
		applied = append(applied, metav1ac.Condition().
			WithType(c.Type).
			WithStatus(c.Status).
			WithReason(c.Reason).
			WithMessage(c.Message).
			WithObservedGeneration(c.ObservedGeneration).
			WithLastTransitionTime(c.LastTransitionTime))
	}
	return applied
}

// TurnedFalse returns the condition of type kind if it is False in after, for a reason
// that it did not have in before. Such a transition is worth an event; the same problem
// a second time is not.
func TurnedFalse(before, after []metav1.Condition, kind string) *metav1.Condition {
	now := meta.FindStatusCondition(after, kind)
	if now == nil || now.Status != metav1.ConditionFalse {
		return nil
	}
	was := meta.FindStatusCondition(before, kind)
	if was != nil && was.Status == metav1.ConditionFalse && was.Reason == now.Reason {
		return nil
	}
	return now
}
