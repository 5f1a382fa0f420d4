// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Each kubelet updates its Node every few seconds.
func TestWhichChangesOfANodeAreRelevant(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*corev1.Node)
		relevant bool
	}{
		"heartbeat":   {change: func(n *corev1.Node) { n.Status.Conditions[0].Message = "still posting" }},
		"not ready":   {change: func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionFalse }},
		"capacity":    {change: func(n *corev1.Node) { n.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("4")} }},
		"unreachable": {change: func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown }, relevant: true},
		"uncordoned":  {change: func(n *corev1.Node) { n.Spec.Unschedulable = false }, relevant: true},
		"annotated":   {change: func(n *corev1.Node) { n.Annotations = map[string]string{v1beta1.AnnotationCordonedFor: "a/i-1"} }, relevant: true},
		"another time": {change: func(n *corev1.Node) {
			n.Annotations = map[string]string{v1beta1.AnnotationDeleteAt: "2026-01-02T03:04:05Z"}
		}, relevant: true},
		"another reason":    {change: func(n *corev1.Node) { n.Annotations = map[string]string{v1beta1.AnnotationDrainReason: "spot"} }, relevant: true},
		"has a provider id": {change: func(n *corev1.Node) { n.Spec.ProviderID = "kwok:///other" }, relevant: true},
		"recreated":         {change: func(n *corev1.Node) { n.UID = "another" }, relevant: true},
	} {
		t.Run(name, func(t *testing.T) {
			before := newNode("n1")
			before.Spec.Unschedulable = true
			before.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			after := before.DeepCopy()
			c.change(after)
			if got := relevantChange(before, after); got != c.relevant {
				t.Errorf("relevant: %t, want %t", got, c.relevant)
			}
		})
	}
}

// A new leader starts with the drains of shards that have not announced them to it yet: the
// Nodes were cordoned for them.
func TestALeaderStartsWithAnnouncedDrainsAndCordonedNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cordoned := newNode("n1")
		cordoned.Annotations = map[string]string{v1beta1.AnnotationCordonedFor: "c/i-9"}
		h := newHarness(t, cordoned, newNode("n2"))
		h.announce("n2", time.Now().Add(time.Hour))
		synctest.Wait()
		assert.ElementsMatch(t, []Key{{"c", "i-9"}, {"a", "i-n2"}}, h.controller.keys([]string{"a", "b"}))
	})
}
