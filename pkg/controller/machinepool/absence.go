// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"slices"

	"nstance.dev/operator/pkg/distribute"
	"nstance.dev/operator/pkg/shard"
)

// absence is what a shard is to have and is known not to have yet. Who takes back
// what he asked for and did not get, as the autoscaler does, chooses nobody; then
// nothing that runs is to go.
type absence struct {
	// untold is how many instances the shard was not told of.
	untold int32
	// pending are the ids of those that it is making, the youngest last.
	pending []string
}

// absences are those of a pool's shards. The instances that were chosen to go are
// left out: they go before what is absent.
func absences(shards []shardState, victims []distribute.Victim) []absence {
	absences := make([]absence, len(shards))
	for i := range shards {
		absences[i] = shards[i].absence(func(id string) bool {
			return slices.Contains(victims, distribute.Victim{Shard: i, ID: id})
		})
	}
	return absences
}

func (s *shardState) absence(victim func(id string) bool) absence {
	if s.group == nil || !s.synced || s.reported != nil && !s.reported.ListsInstances {
		return absence{}
	}
	var told int32
	var pending []string
	missing := s.group.Spec.Size
	if s.reported != nil {
		told = s.reported.Size
		for _, instance := range s.reported.Instances {
			switch {
			case instance.State.Ends() || s.chosen(instance.ID):
			case victim(instance.ID), instance.State != shard.InstancePending:
				missing--
			default:
				pending = append(pending, instance.ID)
			}
		}
	}
	missing = max(missing, 0)
	untold := min(missing, max(s.group.Spec.Size-told, 0))
	// Those that come in the place of others are not missed.
	comes := min(int(missing-untold), len(pending))
	return absence{untold, pending[len(pending)-comes:]}
}

// count is how many instances are absent.
func (a absence) count() int32 { return a.untold + int32(len(a.pending)) }

// first are the instances to name when so many are to be fewer that nobody chose:
// none of those that the shard does not know, and then the youngest.
func (a absence) first(fewer int32) []string {
	named := min(max(int(fewer-a.untold), 0), len(a.pending))
	return a.pending[len(a.pending)-named:]
}
