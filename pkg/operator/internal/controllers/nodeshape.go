// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// CommonShape returns the shape that a Node of a pool has at least on every shard, nil if
// no shard reports a shape. It must not promise too much: a resource counts with its smallest
// quantity, and only if all shards have it; a label, architecture or operating system
// counts if all shards have the same; a taint counts if one shard has it. A
// shape is nil if its shard has no report.
func CommonShape(shapes []*shard.NodeShape) *shard.NodeShape {
	reported := slices.DeleteFunc(slices.Clone(shapes), func(shape *shard.NodeShape) bool { return shape == nil })
	if len(reported) == 0 {
		return nil
	}
	common := &shard.NodeShape{Capacity: map[string]string{}}
	common.Architecture, _ = agreed(reported, func(s *shard.NodeShape) (string, bool) { return s.Architecture, true })
	common.OperatingSystem, _ = agreed(reported, func(s *shard.NodeShape) (string, bool) { return s.OperatingSystem, true })
	for name := range reported[0].Capacity {
		if quantity, ok := smallest(reported, name); ok {
			common.Capacity[name] = quantity.String()
		}
	}
	for _, label := range reported[0].Labels {
		value, ok := agreed(reported, func(s *shard.NodeShape) (string, bool) {
			value, ok := s.Labels.Get(label.Key)
			return value, ok
		})
		if ok {
			common.Labels = append(common.Labels, shard.Label{Key: label.Key, Value: value})
		}
	}
	for _, shape := range reported {
		common.Taints = append(common.Taints, shape.Taints...)
	}
	slices.SortFunc(common.Taints, func(a, b shard.Taint) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Value, b.Value), cmp.Compare(a.Effect, b.Effect))
	})
	common.Taints = slices.Compact(common.Taints)
	return common
}

// WithNodeSettings adds the labels and taints that the operator sets on the Nodes of a pool, and the
// maximum number of Pods of their kubelets, to a shape, which may be nil. Taints that are set once are removed by another component, and so no property of
// the Nodes.
func WithNodeSettings(shape *shard.NodeShape, settings *v1beta1.NodeSettings) *shard.NodeShape {
	if shape == nil || settings == nil {
		return shape
	}
	combined := *shape
	combined.Labels = slices.DeleteFunc(slices.Clone(shape.Labels), func(l shard.Label) bool { _, ours := settings.Labels[l.Key]; return ours })
	for _, key := range slices.Sorted(maps.Keys(settings.Labels)) {
		combined.Labels = append(combined.Labels, shard.Label{Key: key, Value: settings.Labels[key]})
	}
	slices.SortFunc(combined.Labels, func(a, b shard.Label) int { return strings.Compare(a.Key, b.Key) })
	combined.Taints = slices.Clone(shape.Taints)
	for _, taint := range settings.Taints {
		if taint.Propagation != v1beta1.TaintAlways {
			continue
		}
		combined.Taints = slices.DeleteFunc(combined.Taints, func(t shard.Taint) bool { return t.Key == taint.Key && t.Effect == string(taint.Effect) })
		combined.Taints = append(combined.Taints, shard.Taint{Key: taint.Key, Value: taint.Value, Effect: string(taint.Effect)})
	}
	slices.SortFunc(combined.Taints, func(a, b shard.Taint) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Value, b.Value), strings.Compare(a.Effect, b.Effect))
	})
	if settings.MaxPods > 0 {
		combined.Capacity = map[string]string{string(corev1.ResourcePods): strconv.FormatInt(int64(settings.MaxPods), 10)}
		for name, quantity := range shape.Capacity {
			if name != string(corev1.ResourcePods) {
				combined.Capacity[name] = quantity
			}
		}
	}
	return &combined
}

// agreed returns the value that all shapes have, and whether there is one.
func agreed(shapes []*shard.NodeShape, value func(*shard.NodeShape) (string, bool)) (string, bool) {
	first, ok := value(shapes[0])
	for _, shape := range shapes[1:] {
		if other, ok := value(shape); !ok || other != first {
			return "", false
		}
	}
	return first, ok
}

// smallest returns the smallest quantity of a resource, and whether all shapes have a
// valid one.
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

// CapacityOf returns the capacity of shape as Cluster API has it, without invalid
// quantities.
func CapacityOf(shape *shard.NodeShape) corev1.ResourceList {
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

// NodeInfoOf returns the architecture and operating system of shape as Cluster API
// has them. A value that the definition does not allow is left out, because the API server
// would reject the whole status.
func NodeInfoOf(shape *shard.NodeShape) v1beta1.NodeInfo {
	if shape == nil {
		return v1beta1.NodeInfo{}
	}
	return v1beta1.NodeInfo{Architecture: platform(shape.Architecture), OperatingSystem: platform(shape.OperatingSystem)}
}

// platform returns a value of a NodeInfo, "" if it is too long.
func platform(value string) string {
	if utf8.RuneCountInString(value) > v1beta1.MaxNodeInfoLength {
		return ""
	}
	return value
}
