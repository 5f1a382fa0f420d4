// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/distribute"
)

// poolKind is the kind that MachinePools refer to and shard groups belong to.
const poolKind = "NstanceMachinePool"

// observation is what the caches say about a pool at the moment of a sync.
type observation struct {
	pool *v1beta1.NstanceMachinePool
	// machinePools refer to the pool. There should be one.
	machinePools []*clusterv1.MachinePool
	// namesake tells that a MachinePool of the pool's name refers elsewhere.
	namesake bool
	// shards are in the order of the pool's spec.
	shards []shardState
	// owned are the shard groups of the pool, also of shards it no longer names.
	owned []*v1beta1.NstanceShardGroup
}

// shardState is one shard of a pool.
type shardState struct {
	id string
	// configured: the shard is in the configuration.
	configured bool
	// synced: its groups are known completely.
	synced bool
	// size is the size of the pool's group on the shard, 0 when it has none.
	size int32
	// group is the shard group of that name, whoever owns it.
	group *v1beta1.NstanceShardGroup
}

// decision is what a sync is going to do.
type decision struct {
	// create is the number of replicas of the MachinePool to make, if one is to
	// be made.
	create *int32
	// apply are the shard groups that have to be written.
	apply []shardGroupSpec
	// remove are shard groups of shards that the pool no longer names.
	remove []*v1beta1.NstanceShardGroup
	// sizes are the wanted sizes by shard, nil while nothing may be spread.
	sizes []int32
	// hold is why nothing may be spread.
	hold *trouble
}

// shardGroupSpec is a shard group as it should be.
type shardGroupSpec struct {
	// uid is that of the existing object. With it an apply cannot bring back an
	// object that was deleted meanwhile.
	uid  string
	spec v1beta1.NstanceShardGroupSpec
}

// trouble becomes a condition.
type trouble struct{ reason, message string }

// plan decides how the pool's replicas are spread. It changes nothing on
// missing information: sizes stay as they are until the number of replicas is
// known and every shard is.
func plan(seen observation) decision {
	if hold := hindrance(seen); hold != nil {
		return decision{hold: hold}
	}
	if len(seen.machinePools) == 0 {
		return decision{create: sumOfSizes(seen.shards), hold: &trouble{
			v1beta1.ReasonNoMachinePool, fmt.Sprintf("MachinePool %q is being made", seen.pool.Name),
		}}
	}

	var d decision
	d.sizes = distribute.Even(*seen.machinePools[0].Spec.Replicas, len(seen.shards))
	for i, shard := range seen.shards {
		want := wantedSpec(seen.pool, shard.id, d.sizes[i])
		switch {
		case shard.group == nil:
			d.apply = append(d.apply, shardGroupSpec{spec: want})
		case !shard.group.DeletionTimestamp.IsZero():
			// It is made again once it is gone.
		case !sameShardGroup(seen.pool, shard.group, &want):
			d.apply = append(d.apply, shardGroupSpec{uid: string(shard.group.UID), spec: want})
		}
	}
	for _, group := range seen.owned {
		if !slices.Contains(seen.pool.Spec.Shards, group.Spec.Shard) && group.DeletionTimestamp.IsZero() {
			d.remove = append(d.remove, group)
		}
	}
	return d
}

// hindrance is why the pool's replicas cannot be spread, nil when they can.
func hindrance(seen observation) *trouble {
	var unknown, unread []string
	for _, shard := range seen.shards {
		switch {
		case !shard.configured:
			unknown = append(unknown, shard.id)
		case !shard.synced:
			unread = append(unread, shard.id)
		}
		if shard.group != nil && !metav1.IsControlledBy(shard.group, seen.pool) {
			return &trouble{v1beta1.ReasonGroupInUse,
				fmt.Sprintf("shard group %q belongs to another pool", shard.group.Name)}
		}
	}
	switch {
	case len(unknown) > 0:
		return &trouble{v1beta1.ReasonUnknownShard,
			fmt.Sprintf("spec.shards names shards that are not configured: %s", strings.Join(unknown, ", "))}
	case len(seen.machinePools) > 1:
		return &trouble{v1beta1.ReasonMachinePoolConflict,
			fmt.Sprintf("%d MachinePools refer to this pool: %s", len(seen.machinePools), names(seen.machinePools))}
	case len(seen.machinePools) == 1 && seen.machinePools[0].Spec.Replicas == nil:
		return &trouble{v1beta1.ReasonNoMachinePool,
			fmt.Sprintf("MachinePool %q has no spec.replicas", seen.machinePools[0].Name)}
	case len(seen.machinePools) == 0 && seen.namesake:
		return &trouble{v1beta1.ReasonMachinePoolConflict,
			fmt.Sprintf("MachinePool %q refers to another infrastructure object", seen.pool.Name)}
	case len(seen.machinePools) == 0 && len(unread) > 0:
		return &trouble{v1beta1.ReasonNotSynced,
			fmt.Sprintf("no MachinePool is made before every shard was read; missing: %s", strings.Join(unread, ", "))}
	}
	return nil
}

// sumOfSizes is what the group has on all shards together. It is the first
// number of replicas, so that taking a group over changes nothing.
func sumOfSizes(shards []shardState) *int32 {
	var sum int32
	for _, shard := range shards {
		sum += shard.size
	}
	return &sum
}

func wantedSpec(pool *v1beta1.NstanceMachinePool, shard string, size int32) v1beta1.NstanceShardGroupSpec {
	return v1beta1.NstanceShardGroupSpec{
		Group:        pool.Spec.Group,
		Shard:        v1beta1.Identifier(shard),
		Size:         size,
		Template:     pool.Spec.Template,
		InstanceType: pool.Spec.InstanceType,
		Subnets:      pool.Spec.Subnets,
		Vars:         pool.Spec.Vars,
	}
}

func names(machinePools []*clusterv1.MachinePool) string {
	list := make([]string, len(machinePools))
	for i, machinePool := range machinePools {
		list[i] = machinePool.Name
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}
