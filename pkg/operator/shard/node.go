// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import (
	"maps"
	"slices"
)

// NodeShape is the expected shape of a group's Nodes, as far as the server knows it
// before the first Node exists. Fields that the server does not know are empty.
type NodeShape struct {
	// Architecture and OperatingSystem have the values of GOARCH and GOOS.
	Architecture, OperatingSystem string
	// Capacity are quantities by resource, such as cpu and memory.
	Capacity map[string]string
	Labels   map[string]string
	Taints   []Taint
}

// Taint is a taint that a Node of a group registers with.
type Taint struct {
	Key, Value string
	// Effect is NoSchedule, PreferNoSchedule or NoExecute.
	Effect string
}

// Equal reports whether two shapes are the same. Two nil shapes are.
func (s *NodeShape) Equal(other *NodeShape) bool {
	if s == nil || other == nil {
		return s == other
	}
	return s.Architecture == other.Architecture &&
		s.OperatingSystem == other.OperatingSystem &&
		maps.Equal(s.Capacity, other.Capacity) &&
		maps.Equal(s.Labels, other.Labels) &&
		slices.Equal(s.Taints, other.Taints)
}
