// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"maps"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestTheNodeIsAsExpected compares the expected Node with the Node: they differ only
// in what differs per instance.
func TestTheNodeIsAsExpected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kwoktest.NewClientset()
		p := start(t, client, "a")
		spec := provider.Spec{
			Group: group, Template: "worker", Kind: "knd", Type: instanceTypes["m7i.large"],
			Args: map[string]any{"labels": map[string]any{"pool": "gold", "empty": ""}},
		}
		expected := p.ExpectedNode(spec)
		spec.ID, spec.Subnet = providertest.NewID(t), "subnet-a"
		require.NoError(t, p.Create(t.Context(), spec))
		p.Await(group, map[string]instance.State{spec.ID: instance.Running})
		node, err := client.CoreV1().Nodes().Get(t.Context(), spec.ID, metav1.GetOptions{})
		require.NoError(t, err)
		own := map[string]string{"nstance.dev/instance-id": spec.ID, "nstance.dev/subnet": "subnet-a", "kubernetes.io/hostname": spec.ID}
		labels := maps.Clone(expected.Labels)
		maps.Copy(labels, own)
		if diff := cmp.Diff(node.Labels, labels); diff != "" || len(labels) != len(expected.Labels)+len(own) {
			t.Errorf("the labels of the Node, and those expected with its own (-got +expected):\n%s", diff)
		}
		if diff := cmp.Diff(node.Status.Capacity, expected.Status.Capacity); diff != "" {
			t.Errorf("capacity (-got +expected):\n%s", diff)
		}
		if diff := cmp.Diff(node.Status.NodeInfo, expected.Status.NodeInfo); diff != "" || len(node.Spec.Taints)+len(expected.Spec.Taints) > 0 {
			t.Errorf("node info (-got +expected):\n%s", diff)
		}
		if quantity := expected.Status.Capacity[corev1.ResourcePods]; quantity.String() != "110" {
			t.Errorf("%s Pods are expected", quantity.String())
		}
		if expected.Name != "" || expected.Spec.ProviderID != "" {
			t.Errorf("the expected Node has a name: %v", expected)
		}
	})
}
