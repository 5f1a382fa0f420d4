// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package status

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// trueIsBad are the conditions that are to be False.
var trueIsBad = []string{v1beta1.ConditionPaused, v1beta1.ConditionShortfall, v1beta1.ConditionServerDeleted}

// informative are the conditions whose status is a setting or a progress, and no problem:
// MachinesEnabled is one of them unless a server does not support it.
func informative(condition metav1.Condition) bool {
	return condition.Type == v1beta1.ConditionMachinesEnabled && condition.Reason == v1beta1.ReasonMachinesDisabled
}

// problems returns the conditions that are not as they should be, Ready first.
func problems(conditions []metav1.Condition) []Condition {
	var found []Condition
	for _, condition := range conditions {
		good := metav1.ConditionTrue
		if slices.Contains(trueIsBad, condition.Type) {
			good = metav1.ConditionFalse
		}
		if condition.Status == good || informative(condition) {
			continue
		}
		found = append(found, Condition{
			Type: condition.Type, Status: string(condition.Status), Reason: condition.Reason,
			Message: condition.Message, Since: condition.LastTransitionTime.Time,
		})
	}
	slices.SortStableFunc(found, func(a, b Condition) int { return rank(a) - rank(b) })
	return found
}

// rank puts Ready first.
func rank(condition Condition) int {
	if condition.Type == v1beta1.ConditionReady {
		return 0
	}
	return 1
}
