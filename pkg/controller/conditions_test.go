// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSetCondition(t *testing.T) {
	before := metav1.NewTime(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))
	conditions := []metav1.Condition{{
		Type: "Ready", Status: metav1.ConditionFalse, Reason: "Scaling", ObservedGeneration: 1, LastTransitionTime: before,
	}}

	SetCondition(&conditions, 2, "Ready", metav1.ConditionFalse, "Rejected", "no such template")
	got := conditions[0]
	if got.Reason != "Rejected" || got.Message != "no such template" || got.ObservedGeneration != 2 {
		t.Errorf("got %+v", got)
	}
	if !got.LastTransitionTime.Equal(&before) {
		t.Error("the transition time changed while the status did not")
	}

	SetCondition(&conditions, 2, "Ready", metav1.ConditionTrue, "Ready", "")
	if conditions[0].LastTransitionTime.Equal(&before) {
		t.Error("the transition time did not change with the status")
	}

	same := *conditions[0].DeepCopy()
	SetCondition(&conditions, 2, "Ready", metav1.ConditionTrue, "Ready", "")
	if len(conditions) != 1 || !equality.Semantic.DeepEqual(conditions[0], same) {
		t.Errorf("setting the same again made %+v of %+v", conditions, same)
	}
}

func TestTurnedFalse(t *testing.T) {
	condition := func(status metav1.ConditionStatus, reason string) []metav1.Condition {
		return []metav1.Condition{{Type: "Ready", Status: status, Reason: reason}}
	}
	tests := map[string]struct {
		before, after []metav1.Condition
		want          bool
	}{
		"it is there for the first time":        {nil, condition(metav1.ConditionFalse, "Rejected"), true},
		"it was true":                           {condition(metav1.ConditionTrue, "Ready"), condition(metav1.ConditionFalse, "Rejected"), true},
		"it was unknown for the same reason":    {condition(metav1.ConditionUnknown, "Rejected"), condition(metav1.ConditionFalse, "Rejected"), true},
		"it was false for another reason":       {condition(metav1.ConditionFalse, "Scaling"), condition(metav1.ConditionFalse, "Rejected"), true},
		"it was false for the same reason":      {condition(metav1.ConditionFalse, "Rejected"), condition(metav1.ConditionFalse, "Rejected"), false},
		"it became true":                        {condition(metav1.ConditionFalse, "Rejected"), condition(metav1.ConditionTrue, "Ready"), false},
		"it became unknown":                     {condition(metav1.ConditionTrue, "Ready"), condition(metav1.ConditionUnknown, "NotSynced"), false},
		"there is no such condition any more":   {condition(metav1.ConditionTrue, "Ready"), nil, false},
		"another condition has turned to false": {nil, []metav1.Condition{{Type: "Other", Status: metav1.ConditionFalse}}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := TurnedFalse(test.before, test.after, "Ready"); (got != nil) != test.want {
				t.Errorf("got %v, want %t", got, test.want)
			}
		})
	}
}
