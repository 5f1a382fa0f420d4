// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"slices"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/distribute"
	"nstance.dev/operator/pkg/shard"
)

// observation is what the caches say about a pool at the moment of a sync.
type observation struct {
	pool *v1beta1.NstanceMachinePool
	// machinePools refer to the pool. There should be one.
	machinePools []*clusterv1.MachinePool
	// namesake tells that a MachinePool of the pool's name refers elsewhere.
	namesake bool
	// paused is what pauses the pool, "" when nothing does.
	paused string
	// clusterGoes tells that the Cluster is being deleted.
	clusterGoes bool
	// shards are in the order of the pool's spec.
	shards []shardState
	// owned are the shard groups of the pool, also of shards it no longer names.
	owned []*v1beta1.NstanceShardGroup
	// members are the NstanceMachines that stand for instances of the pool.
	members []*v1beta1.NstanceMachine
	// victims were chosen to go before others.
	victims []distribute.Victim
}

// shardState is one shard of a pool.
type shardState struct {
	id string
	// configured: the shard is in the configuration.
	configured bool
	// synced: its groups are known completely.
	synced bool
	// size is the size of the pool's group on the shard, 0 when it has none or
	// is about to have none.
	size int32
	// reported is the pool's group on the shard, nil when it has none.
	reported *shard.Group
	// group is the shard group of that name, whoever owns it.
	group *v1beta1.NstanceShardGroup
}

// decision is what a sync is going to do.
type decision struct {
	// create is the number of replicas of the MachinePool to make, if one is to
	// be made.
	create *int32
	// raise is the number of replicas that the MachinePool is to have, if that
	// is to be changed.
	raise *int32
	// apply are the shard groups that have to be written.
	apply []shardGroupSpec
	// remove are shard groups that have to go: of shards that the pool no longer
	// names, or all of a pool that is being deleted.
	remove []*v1beta1.NstanceShardGroup
	// removeMachinePools are MachinePools of a pool that is being deleted.
	removeMachinePools []*clusterv1.MachinePool
	// adopt makes the MachinePools of a pool that is being deleted its owners.
	adopt bool
	// release lets a pool go that is being deleted.
	release bool
	// frozen: nothing of the pool's spec may be written.
	frozen bool
	// sizes are the wanted sizes by shard, nil while nothing may be spread.
	sizes []int32
	// machines is whether the instances have Machines.
	machines machinesMode
	// hold is why nothing may be spread.
	hold *trouble
}

// shardGroupSpec is a shard group as it should be.
type shardGroupSpec struct {
	// uid is that of the existing object. With it an apply cannot bring back an
	// object that was deleted meanwhile.
	uid  string
	spec v1beta1.NstanceShardGroupSpec
	// kept is the value of AnnotationKept, "" for none.
	kept string
}

// trouble becomes a condition.
type trouble struct{ reason, message string }

// plan decides how the pool's replicas are spread. It changes nothing on
// missing information: sizes stay as they are until the number of replicas is
// known and every shard is.
func plan(seen observation) decision {
	switch {
	case seen.paused != "":
		return decision{frozen: true, sizes: presentSizes(seen.shards), machines: machinesMode{on: hasMachines(seen.pool)}}
	case !seen.pool.DeletionTimestamp.IsZero():
		return planDeletion(seen)
	}
	machines := planMachines(seen)
	if hold := hindrance(seen); hold != nil {
		return decision{hold: hold, machines: machines}
	}
	present := sum(presentSizes(seen.shards))
	if len(seen.machinePools) == 0 {
		// With the number of what there is, taking a group over changes nothing.
		return decision{create: &present, machines: machines, hold: &trouble{
			v1beta1.ReasonNoMachinePool, fmt.Sprintf("MachinePool %q is being made", seen.pool.Name),
		}}
	}
	machinePool := seen.machinePools[0]
	if !asked(seen, machinePool) && *machinePool.Spec.Replicas < present {
		return decision{raise: &present, machines: machines, hold: &trouble{
			v1beta1.ReasonNoMachinePool, fmt.Sprintf("nobody asked for the %d replicas of MachinePool %q and the shards have %d, which it is going to be",
				*machinePool.Spec.Replicas, machinePool.Name, present),
		}}
	}

	d := decision{machines: machines}
	divided := spread(seen, *machinePool.Spec.Replicas, machines.on)
	d.sizes = divided.sizes
	for i, shard := range seen.shards {
		want := shardGroupSpec{spec: wantedSpec(seen.pool, shard.id, d.sizes[i]), kept: divided.kept(&shard)}
		want.spec.RemoveFirst = shard.removeFirst(d.sizes[i], divided.chosen[i])
		switch {
		case shard.group == nil && !shard.synced && hasMachines(seen.pool):
			// Its size is what the server has, which is not known.
		case shard.group == nil:
			d.apply = append(d.apply, want)
		case !shard.group.DeletionTimestamp.IsZero():
			// It is made again once it is gone.
		case !sameShardGroup(seen.pool, shard.group, want):
			want.uid = string(shard.group.UID)
			d.apply = append(d.apply, want)
		}
	}
	for _, group := range seen.owned {
		if leaves(seen.pool, group) && group.DeletionTimestamp.IsZero() {
			d.remove = append(d.remove, group)
		}
	}
	return d
}

// leaves tells whether a shard group of the pool is of a shard that the pool no
// longer names.
func leaves(pool *v1beta1.NstanceMachinePool, group *v1beta1.NstanceShardGroup) bool {
	return !slices.Contains(pool.Spec.Shards, group.Spec.Shard)
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
