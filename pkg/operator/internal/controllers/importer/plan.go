// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// observation is the cached state from which plan decides.
type observation struct {
	// group is the key of the group.
	group string
	// shards are the configured shards that have the group or a shard group of it, sorted by id.
	shards []shardState
	// pools are the pools of the group, sorted by name. There should be at most one pool.
	pools []*v1beta1.NstanceMachinePool
	// namesake is the pool of another group whose name is the group's name.
	namesake *v1beta1.NstanceMachinePool
	// machinePoolDeleted is true if a MachinePool is being deleted that would delete a new
	// pool of the group's name too.
	machinePoolDeleted bool
	// cluster is the Cluster that pools belong to, nil if it does not exist.
	cluster *clusterv1.Cluster
}

// shardState is one configured shard.
type shardState struct {
	id string
	// group is the group as the shard reports it, nil if the shard does not have it.
	group *shard.Group
	// shardGroup is the NstanceShardGroup of the group on this shard, nil if it does not
	// exist.
	shardGroup *v1beta1.NstanceShardGroup
}

// decision has the changes that plan decides on.
type decision struct {
	// create is the spec of the pool to create, nil if no pool is to be created.
	create *v1beta1.NstanceMachinePoolSpec
	// instances is the number of instances of the new pool: the sum of the group's sizes.
	instances int32
	// warning is recorded as an event of a pool.
	warning *warning
}

// warning is the content of an event about pool.
type warning struct {
	pool            *v1beta1.NstanceMachinePool
	reason, message string
}

// isNothing reports whether there is nothing to do.
func (d decision) isNothing() bool { return d.create == nil && d.warning == nil }

// plan decides whether a group gets a pool. A decision counts only if every shard is known: a pool
// with only some of the group's shards, and so with a partial sum of sizes, would not be completed
// later.
func plan(observed observation) decision {
	having := slices.DeleteFunc(slices.Clone(observed.shards), func(s shardState) bool { return s.group == nil || s.group.Deleting })
	slices.SortFunc(having, func(a, b shardState) int { return strings.Compare(a.id, b.id) })
	switch {
	case len(having) == 0:
		return decision{}
	case len(observed.pools) > 0:
		return decision{warning: notListed(observed.group, observed.pools, having)}
	case observed.namesake != nil:
		return decision{warning: nameTaken(observed.group, observed.namesake)}
	case observed.machinePoolDeleted || blocksImports(observed.cluster) || slices.ContainsFunc(observed.shards, hasLeftover):
		return decision{}
	default:
		return decision{create: newSpec(observed.group, having), instances: totalSize(having)}
	}
}

// blocksImports reports whether the Cluster blocks imports: it is paused, or it is being
// deleted together with its MachinePools.
func blocksImports(cluster *clusterv1.Cluster) bool {
	return cluster != nil && (!cluster.DeletionTimestamp.IsZero() || controllers.PausedBy(cluster) != "")
}

func hasLeftover(s shardState) bool { return s.shardGroup != nil && leftover(s.shardGroup) }

// leftover reports whether a shard group belongs to a former pool. It will be deleted, together with
// the group on its shard.
func leftover(shardGroup *v1beta1.NstanceShardGroup) bool {
	return !shardGroup.DeletionTimestamp.IsZero() || metav1.GetControllerOfNoCopy(shardGroup) != nil
}

// newSpec returns the spec of a pool on the shards that have the group, sorted by id. It omits
// settings that the servers' defaults provide, so that the defaults stay in effect. It
// contains the settings that a former pool declared, so that no instance is replaced. If a former pool
// has bounded the rotation, the rotation is paused: its policy is not known, and without a policy
// outdated instances would be replaced at any time.
func newSpec(group string, found []shardState) *v1beta1.NstanceMachinePoolSpec {
	spec := &v1beta1.NstanceMachinePoolSpec{Group: v1beta1.Identifier(group)}
	spec.GroupSettings, spec.Candidates = commonSettings(found)
	for _, s := range found {
		spec.Shards = append(spec.Shards, v1beta1.Identifier(s.id))
		if s.group.Rotation != nil {
			spec.Rotation = &v1beta1.RotationPolicy{Paused: ptr.To(true)}
		}
	}
	return spec
}

// totalSize returns the sum of the sizes of a group.
func totalSize(found []shardState) (total int32) {
	for _, s := range found {
		total += s.group.Size
	}
	return total
}

// commonSettings returns the template, and the other settings that a former pool has declared,
// if they are equal on all shards. The maxima of candidates are shares, which may differ.
func commonSettings(found []shardState) (v1beta1.GroupSettings, []v1beta1.Candidate) {
	settings := v1beta1.GroupSettings{Template: commonTemplate(found)}
	var declared []shard.GroupSettings
	for _, s := range found {
		if s.group.Declared == nil {
			return settings, nil
		}
		declared = append(declared, *s.group.Declared)
	}
	candidates, same := controllers.PoolCandidates(declared)
	if !same || slices.ContainsFunc(declared, func(d shard.GroupSettings) bool {
		d.Candidates = declared[0].Candidates
		return !d.Equal(declared[0])
	}) {
		return settings, nil
	}
	template := settings.Template
	settings = controllers.SpecSettings(declared[0])
	settings.Template = template
	if template == "" {
		// The group is static, or the templates differ, and so do their subnets.
		settings.Subnets = nil
	}
	// The API server rejects a pool with a setting that has no effect on the servers.
	if len(candidates) > 0 {
		settings.InstanceType = ""
	} else {
		settings.ReturnAfterSeconds = 0
	}
	return settings, candidates
}

// commonTemplate returns the template of a dynamic group that is the same on all shards. It is
// empty if the templates differ, and for a static group, whose template cannot be set.
func commonTemplate(found []shardState) string {
	template := found[0].group.Template
	if slices.ContainsFunc(found, func(s shardState) bool { return s.group.Static || s.group.Template != template }) {
		return ""
	}
	return template
}

// notListed warns of shards that have the group of a pool and are missing from
// spec.shards. A shard with a shard group was removed from spec.shards just now.
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

// nameTaken warns of a pool whose name prevents the import of another group.
func nameTaken(group string, namesake *v1beta1.NstanceMachinePool) *warning {
	if !namesake.DeletionTimestamp.IsZero() {
		return nil
	}
	return &warning{namesake, reasonNameTaken,
		fmt.Sprintf("group %q on the shards gets no pool, because the pool of that name has group %q", group, namesake.Spec.Group)}
}
