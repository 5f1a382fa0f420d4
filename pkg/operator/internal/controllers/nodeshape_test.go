// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

func TestNodeShape(t *testing.T) {
	type (
		shape  = shard.NodeShape
		values = map[string]string
	)
	labels := shard.LabelsOf
	taints := func(all ...string) (made []shard.Taint) {
		for _, each := range all {
			parts := strings.Split(each, " ")
			made = append(made, shard.Taint{Key: parts[0], Value: parts[1], Effect: parts[2]})
		}
		return made
	}
	whole := shape{
		Architecture: "amd64", OperatingSystem: "linux",
		Capacity: values{"cpu": "2", "memory": "8Gi"},
		Labels:   labels(values{"tier": "batch", "zone": ""}),
		Taints:   taints("batch yes NoSchedule"),
	}
	for name, test := range map[string]struct {
		shapes []*shape
		want   *shape
	}{
		"no shards":               {nil, nil},
		"no shard reports one":    {[]*shape{nil, nil}, nil},
		"one shard":               {[]*shape{&whole}, &whole},
		"one of two reports one":  {[]*shape{nil, &whole}, &whole},
		"two of a kind":           {[]*shape{&whole, &whole}, &whole},
		"one that knows nothing":  {[]*shape{{}}, &shape{}},
		"and one that knows all":  {[]*shape{{}, &whole}, &shape{Taints: whole.Taints}},
		"another architecture":    {[]*shape{{Architecture: "amd64", OperatingSystem: "linux"}, {Architecture: "arm64", OperatingSystem: "linux"}}, &shape{OperatingSystem: "linux"}},
		"another system":          {[]*shape{{Architecture: "amd64", OperatingSystem: "linux"}, {Architecture: "amd64", OperatingSystem: "windows"}}, &shape{Architecture: "amd64"}},
		"the last is another":     {[]*shape{{Architecture: "amd64"}, {Architecture: "amd64"}, {}}, &shape{}},
		"the smallest of each":    {[]*shape{{Capacity: values{"cpu": "2", "memory": "8Gi"}}, {Capacity: values{"cpu": "1500m", "memory": "9000Mi"}}}, &shape{Capacity: values{"cpu": "1500m", "memory": "8Gi"}}},
		"quantities, not texts":   {[]*shape{{Capacity: values{"cpu": "10"}}, {Capacity: values{"cpu": "9"}}}, &shape{Capacity: values{"cpu": "9"}}},
		"one lacks a resource":    {[]*shape{{Capacity: values{"cpu": "2", "nvidia.com/gpu": "1"}}, {Capacity: values{"cpu": "2"}}}, &shape{Capacity: values{"cpu": "2"}}},
		"the first lacks it":      {[]*shape{{Capacity: values{"cpu": "2"}}, {Capacity: values{"cpu": "2", "nvidia.com/gpu": "1"}}}, &shape{Capacity: values{"cpu": "2"}}},
		"nothing of it":           {[]*shape{{Capacity: values{"cpu": "2", "memory": "0"}}, {Capacity: values{"cpu": "2", "memory": "1Gi"}}}, &shape{Capacity: values{"cpu": "2", "memory": "0"}}},
		"no quantity":             {[]*shape{{Capacity: values{"cpu": "2", "memory": "plenty"}}, {Capacity: values{"cpu": "many", "memory": "1Gi"}}}, &shape{}},
		"a label differs":         {[]*shape{{Labels: labels(values{"tier": "batch", "zone": "a"})}, {Labels: labels(values{"tier": "batch", "zone": "b"})}}, &shape{Labels: labels(values{"tier": "batch"})}},
		"a label is missing":      {[]*shape{{Labels: labels(values{"tier": "batch", "empty": ""})}, {Labels: labels(values{"tier": "batch"})}}, &shape{Labels: labels(values{"tier": "batch"})}},
		"the first lacks a label": {[]*shape{{}, {Labels: labels(values{"empty": ""})}}, &shape{}},
		"taints of all, by key": {[]*shape{{Taints: taints("z  NoExecute", "a 2 NoSchedule")}, {Taints: taints("a 1 NoSchedule", "z  NoExecute", "a 1 NoExecute")}},
			&shape{Taints: taints("a 1 NoExecute", "a 1 NoSchedule", "a 2 NoSchedule", "z  NoExecute")}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := CommonShape(test.shapes); !got.Equal(test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

// Shapes belong to the cache, and must not change.
func TestNodeShapeLeavesTheShapesAlone(t *testing.T) {
	taints := []shard.Taint{{Key: "z"}, {Key: "a"}}
	shapes := []*shard.NodeShape{nil, {Taints: taints[:1:2]}, {Taints: []shard.Taint{{Key: "b"}}}}
	CommonShape(shapes)
	if shapes[0] != nil || !slices.Equal(taints, []shard.Taint{{Key: "z"}, {Key: "a"}}) {
		t.Errorf("left %+v and %+v", shapes, taints)
	}
}

func TestCapacityAndNodeInfoOfAShape(t *testing.T) {
	shape := &shard.NodeShape{Architecture: "arm64", OperatingSystem: "linux",
		Capacity: map[string]string{"cpu": "2", "memory": "8Gi", "ephemeral-storage": "plenty"}}
	want := corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("8Gi")}
	if got := CapacityOf(shape); !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("got capacity %v, want %v", got, want)
	}
	if got := NodeInfoOf(shape); got != (v1beta1.NodeInfo{Architecture: "arm64", OperatingSystem: "linux"}) {
		t.Errorf("got %+v", got)
	}
	for _, nothing := range []*shard.NodeShape{nil, {}} {
		if capacity, info := CapacityOf(nothing), NodeInfoOf(nothing); capacity != nil || info != (v1beta1.NodeInfo{}) {
			t.Errorf("of %+v came %v and %+v", nothing, capacity, info)
		}
	}
}

// Otherwise one server could make every write of the status fail.
func TestALongPlatformIsLeftOut(t *testing.T) {
	long := strings.Repeat("x", v1beta1.MaxNodeInfoLength+1)
	if got := NodeInfoOf(&shard.NodeShape{Architecture: long, OperatingSystem: "linux"}); got != (v1beta1.NodeInfo{OperatingSystem: "linux"}) {
		t.Errorf("got %+v", got)
	}
	longest := strings.Repeat("\u00fc", v1beta1.MaxNodeInfoLength)
	if got := NodeInfoOf(&shard.NodeShape{Architecture: longest, OperatingSystem: long}); got != (v1beta1.NodeInfo{Architecture: longest}) {
		t.Errorf("got %+v", got)
	}
}

// The cluster autoscaler sees what the operator sets on Nodes for good, and not a taint that is set once.
func TestShapesHaveTheSettingsOfNodes(t *testing.T) {
	reported := &shard.NodeShape{
		Labels: shard.Labels{{Key: "arch", Value: "arm64"}, {Key: "team", Value: "old"}},
		Taints: []shard.Taint{{Key: "dedicated", Value: "old", Effect: "NoSchedule"}, {Key: "dedicated", Value: "old", Effect: "NoExecute"}},
	}
	before := *reported
	settings := &v1beta1.NodeSettings{
		Labels: map[string]string{"team": "search", "a": "1"},
		Taints: []v1beta1.NodeTaint{
			{Key: "dedicated", Value: "search", Effect: "NoSchedule", Propagation: v1beta1.TaintAlways},
			{Key: "starting", Effect: "NoSchedule", Propagation: v1beta1.TaintOnInitialization},
		},
	}
	combined := WithNodeSettings(reported, settings)
	assert.Equal(t, shard.Labels{{Key: "a", Value: "1"}, {Key: "arch", Value: "arm64"}, {Key: "team", Value: "search"}}, combined.Labels)
	assert.Equal(t, []shard.Taint{{Key: "dedicated", Value: "old", Effect: "NoExecute"}, {Key: "dedicated", Value: "search", Effect: "NoSchedule"}}, combined.Taints)
	assert.Equal(t, before, *reported, "the report is shared")
	assert.Nil(t, combined.Capacity)
	assert.Equal(t, reported, WithNodeSettings(reported, nil))
	assert.Nil(t, WithNodeSettings(nil, settings))

	reported = &shard.NodeShape{Capacity: map[string]string{"cpu": "2", "pods": "110"}}
	combined = WithNodeSettings(reported, &v1beta1.NodeSettings{MaxPods: 17})
	assert.Equal(t, map[string]string{"cpu": "2", "pods": "17"}, combined.Capacity)
	assert.Equal(t, map[string]string{"cpu": "2", "pods": "110"}, reported.Capacity, "the report is shared")
}
