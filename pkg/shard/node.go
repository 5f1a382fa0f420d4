// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import (
	"maps"
	"slices"
)

// NodeShape is what a Node of a group will be like, as far as a server knows it
// before there is one. What is not known is empty.
type NodeShape struct {
	// Architecture and OperatingSystem are as GOARCH and GOOS name them.
	Architecture, OperatingSystem string
	// Capacity are quantities by resource, such as cpu and memory.
	Capacity map[string]string
	Labels   map[string]string
	Taints   []Taint
}

// Taint is one that a Node of a group begins with.
type Taint struct {
	Key, Value string
	// Effect is NoSchedule, PreferNoSchedule or NoExecute.
	Effect string
}

// Equal reports whether both say the same. Two that are nil do.
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
