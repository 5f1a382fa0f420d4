// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import (
	"maps"
	"slices"
)

// GroupSettings is the configuration of a group apart from its size.
type GroupSettings struct {
	// Template is the name of the server's template.
	Template string
	// InstanceType overrides the template's.
	InstanceType string
	// Subnets are the subnet pool ids, in the order they are tried.
	Subnets []string
	// Vars are merged over the template's.
	Vars map[string]string
}

// Equal reports whether two settings are the same. A nil list or map equals an
// empty one.
func (s GroupSettings) Equal(other GroupSettings) bool {
	return s.Template == other.Template &&
		s.InstanceType == other.InstanceType &&
		slices.Equal(s.Subnets, other.Subnets) &&
		maps.Equal(s.Vars, other.Vars)
}
