// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/shard"
)

// observation is what the caches say about a group at the moment of a sync.
type observation struct {
	// group is the key of the group.
	group string
	// shards are all that are configured.
	shards []shardState
	// pools are those of the group, by name. There should be at most one.
	pools []*v1beta1.NstanceMachinePool
	// namesake is the pool of another group that has the group's name.
	namesake *v1beta1.NstanceMachinePool
	// takenAlong tells that a pool of the group's name would be deleted with a
	// MachinePool that goes.
	takenAlong bool
	// cluster is the Cluster that pools belong to, nil when there is none yet.
	cluster *clusterv1.Cluster
}

// shardState is one configured shard.
type shardState struct {
	id string
	// known: all groups of the shard are known, and are up to date.
	known bool
	// group is the group as the shard reports it, nil when it has none.
	group *shard.Group
	// shardGroup is the part of a pool that the group on this shard is, or was.
	shardGroup *v1beta1.NstanceShardGroup
}

// decision is what a sync is going to do.
type decision struct {
	// create is the spec of the pool to make, if one is to be made.
	create *v1beta1.NstanceMachinePoolSpec
	// warning is what to tell about a pool.
	warning *warning
}

// warning becomes an event.
type warning struct {
	pool            *v1beta1.NstanceMachinePool
	reason, message string
}

// plan decides whether a group gets a pool. It waits until every shard is known:
// a pool that has not all shards of its group, and so not the sum of their sizes,
// is wrong from the beginning and nobody would put it right.
func plan(seen observation) decision {
	if slices.ContainsFunc(seen.shards, func(s shardState) bool { return !s.known }) {
		return decision{}
	}
	found := slices.DeleteFunc(slices.Clone(seen.shards), func(s shardState) bool { return s.group == nil || s.group.Deleting })
	slices.SortFunc(found, func(a, b shardState) int { return strings.Compare(a.id, b.id) })
	switch {
	case len(found) == 0:
		return decision{}
	case len(seen.pools) > 0:
		return decision{warning: notListed(seen.group, seen.pools, found)}
	case seen.namesake != nil:
		return decision{warning: nameTaken(seen.group, seen.namesake)}
	case seen.takenAlong || holdsUp(seen.cluster) || slices.ContainsFunc(seen.shards, leftover):
		return decision{}
	default:
		return decision{create: newSpec(seen.group, found)}
	}
}

// holdsUp tells whether the Cluster, if there is one, keeps groups from getting
// pools: its MachinePools are about to go with it, or it is paused.
func holdsUp(cluster *clusterv1.Cluster) bool {
	return cluster != nil && (!cluster.DeletionTimestamp.IsZero() || controller.PausedBy(cluster) != "")
}

// leftover tells whether a shard group, of which there is no pool, is what a
// former pool has left. It goes, and the group on its shard with it.
func leftover(s shardState) bool {
	return s.shardGroup != nil && (!s.shardGroup.DeletionTimestamp.IsZero() || metav1.GetControllerOfNoCopy(s.shardGroup) != nil)
}

// newSpec is the pool of a group on the shards where it was found, by id: their
// configuration knows no order. It says no more than it must, because what the
// servers report is merged with their defaults, which are to stay theirs.
func newSpec(group string, found []shardState) *v1beta1.NstanceMachinePoolSpec {
	spec := &v1beta1.NstanceMachinePoolSpec{Group: v1beta1.Identifier(group), Template: commonTemplate(found)}
	for _, s := range found {
		spec.Shards = append(spec.Shards, v1beta1.Identifier(s.id))
	}
	return spec
}

// commonTemplate is the template that all of the shards have for a dynamic group.
// It is empty when they do not agree, and for a static group, of which no
// template may be set.
func commonTemplate(found []shardState) string {
	template := found[0].group.Template
	if slices.ContainsFunc(found, func(s shardState) bool { return s.group.Static || s.group.Template != template }) {
		return ""
	}
	return template
}

// notListed warns of shards that have the group of a pool and are not named by
// it. One that has a shard group was named until now.
func notListed(group string, pools []*v1beta1.NstanceMachinePool, found []shardState) *warning {
	staying := slices.DeleteFunc(slices.Clone(pools), func(pool *v1beta1.NstanceMachinePool) bool {
		return !pool.DeletionTimestamp.IsZero()
	})
	if len(staying) == 0 {
		return nil
	}
	var missing []string
	for _, s := range found {
		listed := slices.ContainsFunc(pools, func(pool *v1beta1.NstanceMachinePool) bool {
			return slices.Contains(pool.Spec.Shards, v1beta1.Identifier(s.id))
		})
		if !listed && s.shardGroup == nil {
			missing = append(missing, s.id)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return &warning{staying[0], reasonShardNotListed,
		fmt.Sprintf("group %q is also on shards that spec.shards does not name: %s", group, strings.Join(missing, ", "))}
}

// nameTaken warns of a pool whose name keeps a group from getting one.
func nameTaken(group string, namesake *v1beta1.NstanceMachinePool) *warning {
	if !namesake.DeletionTimestamp.IsZero() {
		return nil
	}
	return &warning{namesake, reasonNameTaken,
		fmt.Sprintf("group %q on the shards gets no pool, because the pool of that name has group %q", group, namesake.Spec.Group)}
}
