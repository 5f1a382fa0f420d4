// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package objects

import (
	"maps"
	"slices"
)

// Unknown returns why objects are not known, sorted and each once.
func (s *Snapshot) Unknown() []string {
	all := []string{
		s.Pools.Unknown, s.MachinePools.Unknown, s.ShardGroups.Unknown, s.NstanceMachines.Unknown,
		s.Machines.Unknown, s.PoolEvents.Unknown, s.Clusters.Unknown, s.Nodes.Unknown, s.NodeEvents.Unknown, s.Attachments.Unknown,
		s.RecentEvents.Unknown, s.RecentNodeEvents.Unknown,
	}
	for _, read := range s.Pods {
		all = append(all, read.Unknown)
	}
	for _, read := range s.Budgets {
		all = append(all, read.Unknown)
	}
	for _, read := range s.Requesting {
		all = append(all, read.Unknown)
	}
	found := map[string]bool{}
	for _, why := range all {
		if why != "" {
			found[why] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}
