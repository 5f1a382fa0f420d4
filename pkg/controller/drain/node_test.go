// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Every kubelet changes its Node all the time. Only some changes are worth a sync.
func TestWhichChangesOfANodeMatter(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(*corev1.Node)
		matters bool
	}{
		"heartbeat":         {change: func(n *corev1.Node) { n.Status.Conditions[0].Message = "still posting" }},
		"not ready":         {change: func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }},
		"capacity":          {change: func(n *corev1.Node) { n.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("4")} }},
		"not heard of":      {change: func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, matters: true},
		"uncordoned":        {change: func(n *corev1.Node) { n.Spec.Unschedulable = false }, matters: true},
		"marked":            {change: func(n *corev1.Node) { n.Annotations = map[string]string{v1beta1.AnnotationCordonedFor: "a/i-1"} }, matters: true},
		"has a provider id": {change: func(n *corev1.Node) { n.Spec.ProviderID = "kwok:///other" }, matters: true},
		"is another one":    {change: func(n *corev1.Node) { n.UID = "another" }, matters: true},
	} {
		t.Run(name, func(t *testing.T) {
			before := newNode("n1")
			before.Spec.Unschedulable = true
			before.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			after := before.DeepCopy()
			c.change(after)
			if got := !alike(before, after); got != c.matters {
				t.Errorf("matters: %t, want %t", got, c.matters)
			}
		})
	}
}
