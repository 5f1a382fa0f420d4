// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

// An instance has the type and the arguments of the candidate whose digest it has. What it has of its own
// leaves the candidates out.
func TestEffectiveCandidate(t *testing.T) {
	c := newConfig(t)
	types := c.Shard.Infra.InstanceTypes
	group := &groups.Group{
		Settings: groups.Settings{Template: "worker", InstanceType: "m7i.large"}, Kind: "knd", Arch: "amd64", Type: types["m7i.large"], InfraConfigHash: "first",
		Variants: []groups.Variant{
			{InstanceType: "m7i.large", Type: types["m7i.large"], InfraConfigHash: "first"},
			{InstanceType: "r7i.large", Type: types["r7i.large"], InfraConfigHash: "second", Args: map[string]any{"market": "spot"}},
		},
	}
	for name, test := range map[string]struct {
		record   instance.Record
		wantType string
		spot     bool
	}{
		"of the second":             {instance.Record{InfraConfigHash: "second"}, "r7i.large", true},
		"of the first":              {instance.Record{InfraConfigHash: "first"}, "m7i.large", false},
		"of none":                   {instance.Record{InfraConfigHash: "old"}, "m7i.large", false},
		"with the group's template": {instance.Record{InfraConfigHash: "second", Template: "worker"}, "r7i.large", true},
		"with vars":                 {instance.Record{InfraConfigHash: "second", Vars: map[string]string{"a": "b"}}, "r7i.large", true},
		"with its own type":         {instance.Record{InfraConfigHash: "second", InstanceType: "m7i.large"}, "m7i.large", false},
		"with another template":     {instance.Record{InfraConfigHash: "second", Template: "gpu"}, "m7g.large", false},
	} {
		t.Run(name, func(t *testing.T) {
			effective, err := Effective(c, group, &test.record)
			require.NoError(t, err)
			assert.Equal(t, test.wantType, effective.InstanceType)
			assert.Equal(t, test.wantType, effective.Type.Name)
			assert.Equal(t, test.spot, effective.Args["market"] == "spot")
		})
	}
}

func TestCommonNode(t *testing.T) {
	node := func(arch, cpu, memory string, labels map[string]string, taints ...string) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}}
		n.Status.NodeInfo = corev1.NodeSystemInfo{Architecture: arch, OperatingSystem: "linux"}
		n.Status.Capacity = corev1.ResourceList{}
		for name, text := range map[corev1.ResourceName]string{"cpu": cpu, "memory": memory} {
			if text != "" {
				n.Status.Capacity[name] = resource.MustParse(text)
			}
		}
		for _, key := range taints {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key})
		}
		return n
	}
	large := node("amd64", "4", "8Gi", map[string]string{"type": "large", "zone": "a"}, "x")
	wide := node("amd64", "2", "16Gi", map[string]string{"type": "wide", "zone": "a"}, "x", "y")
	assert.Nil(t, CommonNode(nil))
	assert.Nil(t, CommonNode([]*corev1.Node{large, nil}), "nothing is certain of one")
	assert.Same(t, large, CommonNode([]*corev1.Node{large}))
	for _, nodes := range [][]*corev1.Node{{large, wide}, {wide, large}} {
		common := CommonNode(nodes)
		assert.Equal(t, map[string]string{"zone": "a"}, common.Labels)
		assert.Equal(t, "amd64", common.Status.NodeInfo.Architecture)
		assert.True(t, common.Status.Capacity.Cpu().Equal(resource.MustParse("2")))
		assert.True(t, common.Status.Capacity.Memory().Equal(resource.MustParse("8Gi")))
		assert.Len(t, common.Spec.Taints, 2)
	}
	other := CommonNode([]*corev1.Node{large, node("arm64", "4", "", nil)})
	assert.Empty(t, other.Status.NodeInfo.Architecture)
	assert.Len(t, other.Status.Capacity, 1)
	assert.Empty(t, other.Labels)
	assert.Len(t, large.Status.Capacity, 2, "the Node of the provider is left alone")
	assert.Len(t, large.Labels, 2)
}
