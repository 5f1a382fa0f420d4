// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

// nodeShape is what is true of a Node of a pool on whichever shard it will be, nil
// when no shard tells. Who plans with it must not be disappointed: a resource
// counts with the smallest quantity, and only if every shard that tells names it; a
// label, architecture or operating system counts if all say the same; a taint
// counts if one shard has it. A shape that is nil is of a shard that does not tell.
func nodeShape(shapes []*shard.NodeShape) *shard.NodeShape {
	told := slices.DeleteFunc(slices.Clone(shapes), func(shape *shard.NodeShape) bool { return shape == nil })
	if len(told) == 0 {
		return nil
	}
	common := &shard.NodeShape{Capacity: map[string]string{}, Labels: map[string]string{}}
	common.Architecture, _ = agreed(told, func(s *shard.NodeShape) (string, bool) { return s.Architecture, true })
	common.OperatingSystem, _ = agreed(told, func(s *shard.NodeShape) (string, bool) { return s.OperatingSystem, true })
	for name := range told[0].Capacity {
		if quantity, ok := smallest(told, name); ok {
			common.Capacity[name] = quantity.String()
		}
	}
	for key := range told[0].Labels {
		value, ok := agreed(told, func(s *shard.NodeShape) (string, bool) {
			value, ok := s.Labels[key]
			return value, ok
		})
		if ok {
			common.Labels[key] = value
		}
	}
	for _, shape := range told {
		common.Taints = append(common.Taints, shape.Taints...)
	}
	slices.SortFunc(common.Taints, func(a, b shard.Taint) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Value, b.Value), cmp.Compare(a.Effect, b.Effect))
	})
	common.Taints = slices.Compact(common.Taints)
	return common
}

// agreed is what all shapes say, and whether they do.
func agreed(shapes []*shard.NodeShape, say func(*shard.NodeShape) (string, bool)) (string, bool) {
	first, ok := say(shapes[0])
	for _, shape := range shapes[1:] {
		if said, also := say(shape); !also || said != first {
			return "", false
		}
	}
	return first, ok
}

// smallest is the smallest quantity of a resource, and whether all shapes name one.
// What is no quantity names none.
func smallest(shapes []*shard.NodeShape, name string) (resource.Quantity, bool) {
	var least resource.Quantity
	for i, shape := range shapes {
		quantity, err := resource.ParseQuantity(shape.Capacity[name])
		if err != nil {
			return resource.Quantity{}, false
		}
		if i == 0 || quantity.Cmp(least) < 0 {
			least = quantity
		}
	}
	return least, true
}

// capacityOf is the capacity of shape as Cluster API has it. What is no quantity is
// left out.
func capacityOf(shape *shard.NodeShape) corev1.ResourceList {
	if shape == nil || len(shape.Capacity) == 0 {
		return nil
	}
	capacity := make(corev1.ResourceList, len(shape.Capacity))
	for name, text := range shape.Capacity {
		if quantity, err := resource.ParseQuantity(text); err == nil {
			capacity[corev1.ResourceName(name)] = quantity
		}
	}
	return capacity
}

// nodeInfoOf is architecture and operating system of shape as Cluster API has them.
func nodeInfoOf(shape *shard.NodeShape) v1beta1.NodeInfo {
	if shape == nil {
		return v1beta1.NodeInfo{}
	}
	return v1beta1.NodeInfo{Architecture: shape.Architecture, OperatingSystem: shape.OperatingSystem}
}
