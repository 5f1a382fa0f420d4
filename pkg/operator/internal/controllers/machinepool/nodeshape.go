// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// shapeOf returns the shape of future Nodes of a pool, nil if it is not known: no shard
// reports it, or the report of a shard is missing, which may have less than the others,
// or taints. A first shape does not wait for a shard that is not connected,
// because the pool could not be scaled from zero until then.
func shapeOf(observed observation) *shard.NodeShape {
	known := observed.pool.Status.Capacity != nil || observed.pool.Status.NodeInfo != v1beta1.NodeInfo{}
	var shapes []*shard.NodeShape
	for _, state := range observed.shards {
		if state.reported == nil && (known || state.reachable) {
			return nil
		}
		if state.reported != nil {
			shapes = append(shapes, state.reported.Node)
		}
	}
	return withNodeSettings(controllers.CommonShape(shapes), observed.pool.Spec.Node)
}

// withNodeSettings adds the labels and taints that the operator sets on the Nodes of a pool to a shape,
// which may be nil. Taints that are set once are removed by another component, and so no property of
// the Nodes.
func withNodeSettings(shape *shard.NodeShape, settings *v1beta1.NodeSettings) *shard.NodeShape {
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
	return &combined
}
