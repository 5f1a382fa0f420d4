// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/zones"
)

// place puts each Pod on a Kubernetes Node of its own, in the zone of the same index. A Node without a zone has an empty one.
func (h *harness) place(names ...string) {
	h.t.Helper()
	for ordinal, zone := range names {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "of-" + podName(int32(ordinal))}}
		if zone != "" {
			node.Labels = map[string]string{corev1.LabelTopologyZone: zone}
		}
		h.builtIn.Add(node)
		pod := h.pod(int32(ordinal))
		pod.Spec.NodeName = node.Name
		h.builtIn.Update(podResource, pod)
	}
}

// A zone with as many nodes as there are copies may have all copies of a partition, because the store places copies without
// regard to zones. The condition says so; without zones there is none.
func TestTheLossOfAZone(t *testing.T) {
	for name, c := range map[string]struct {
		factor int32
		zones  []string
		want   string
		says   string
	}{
		"a node in each zone":             {2, []string{"a", "b", "c"}, "True AsExpected", "Zone a has 1 of 3 nodes, and each partition has 2 copies."},
		"two nodes and two copies in one": {2, []string{"a", "b", "b"}, "False ZonesNotUsed", "Zone b has 2 of 3 nodes, and each partition has 2 copies. The store places copies without regard to zones: all copies of a partition may be in that zone."},
		"two nodes and three copies":      {3, []string{"a", "a", "b", "b"}, "True AsExpected", "Zone a has 2 of 4 nodes, and each partition has 3 copies."},
		"one copy":                        {1, []string{"a", "b", "c"}, "False ZonesNotUsed", ""},
		"one zone":                        {2, []string{"a", "a", "a"}, "missing", ""},
		"no zones":                        {2, []string{"", "", ""}, "missing", ""},
		"a Node without a zone":           {2, []string{"a", "b", ""}, "missing", ""},
		"a Pod that has no Node yet":      {2, []string{"a", "b"}, "True AsExpected", ""},
	} {
		h := newHarness(t, func(cluster *v1alpha1.MarekvsCluster) {
			cluster.Spec.ReplicationFactor = c.factor
			cluster.Spec.Nodes = max(3, int32(len(c.zones)))
		})
		h.place(c.zones...)
		h.pass()
		assert.Equal(t, c.want, reason(h.cluster().Status, v1alpha1.ConditionSurvivesZoneLoss), name)
		if c.says != "" {
			assert.Equal(t, c.says, conditionOf(h, v1alpha1.ConditionSurvivesZoneLoss).Message, name)
		}
		assert.Equal(t, v1alpha1.PhaseHealthy, h.cluster().Status.Phase, "%s: it is no reason to wait for anything", name)
	}
}

// A Kubernetes Node is read once in ten minutes, and a Node that cannot be read keeps the condition.
func TestZonesAreRemembered(t *testing.T) {
	h := newHarness(t, nil)
	h.place("a", "b", "c")
	reads := func() (reads int) {
		for _, action := range h.kube.Actions() {
			if action.Matches("get", "nodes") {
				reads++
			}
		}
		h.writes()
		return reads
	}
	h.writes()
	h.pass()
	assert.Equal(t, 3, reads())
	h.settle()
	assert.Equal(t, 0, reads())
	h.kube.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("unknown") })
	h.advance(zones.Period)
	h.pass()
	assert.Equal(t, "True AsExpected", reason(h.cluster().Status, v1alpha1.ConditionSurvivesZoneLoss))

	gone := newHarness(t, nil)
	gone.place("a", "b", "c")
	gone.pass()
	gone.builtIn.Remove(nodeResource, "", "of-demo-2")
	gone.advance(zones.Period)
	gone.pass()
	assert.Equal(t, "missing", reason(gone.cluster().Status, v1alpha1.ConditionSurvivesZoneLoss), "a Node that does not exist has no zone")
}
