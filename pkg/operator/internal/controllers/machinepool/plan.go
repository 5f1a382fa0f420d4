// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"slices"
	"time"

	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/distribute"
	"nstance.dev/operator/pkg/operator/shard"
)

// observation is what a sync has read about a pool.
type observation struct {
	pool *v1beta1.NstanceMachinePool
	// machinePools refer to the pool. There should be one.
	machinePools []*clusterv1.MachinePool
	// nameTaken is set if a MachinePool of the pool's name refers to another object.
	nameTaken bool
	// paused is what pauses the pool, "" if nothing does.
	paused string
	// clusterDeleting is set while the Cluster is being deleted.
	clusterDeleting bool
	// shards are in the order of the pool's spec.
	shards []shardState
	// shardGroups are those of the pool, also on shards that it no longer names.
	shardGroups []*v1beta1.NstanceShardGroup
	// nstanceMachines are those of the pool's instances.
	nstanceMachines []*v1beta1.NstanceMachine
	// candidates are the deletion candidates. They are read only for a scale-down.
	candidates []distribute.Candidate
	// guarded is what the guards of the pool need, nil if it has none.
	guarded *guarded
	// mayMove is set when the last move for a shortfall is long enough ago.
	mayMove bool
	// shortfallWait is when a shortfall becomes due, zero for never.
	shortfallWait time.Duration
}

// shardState is one shard of a pool.
type shardState struct {
	id string
	// configured reports whether the shard is in the configuration.
	configured bool
	// synced reports whether all groups of the shard are known.
	synced bool
	// reachable reports whether the shard is connected.
	reachable bool
	// size is the size of the pool's group on the shard, 0 if there is none or it is
	// being deleted.
	size int32
	// reported is the pool's group on the shard, nil if there is none.
	reported *shard.Group
	// shortfallDue reports whether the shard has reported its shortfall for long enough.
	shortfallDue bool
	// group is the shard group of that name, of this pool or another owner.
	group *v1beta1.NstanceShardGroup
}

// decision is what a sync will do.
type decision struct {
	// create is the number of replicas of the MachinePool to create, nil for none.
	create *int32
	// raise is the number of replicas to set on the MachinePool, nil for no change.
	raise *int32
	// apply are the shard groups to write.
	apply []wantedShardGroup
	// deleteShardGroups are the shard groups to delete: those on shards that the pool
	// no longer names, or all of a pool that is being deleted.
	deleteShardGroups []*v1beta1.NstanceShardGroup
	// deleteMachinePools are the MachinePools of a pool that is being deleted.
	deleteMachinePools []*clusterv1.MachinePool
	// addOwners adds the MachinePools to the owners of a pool that is being deleted.
	addOwners bool
	// removeFinalizer completes the deletion of the pool.
	removeFinalizer bool
	// statusOnly is set while the pool is paused: only its status may be written.
	statusOnly bool
	// sizes are the wanted sizes by shard, nil while the replicas cannot be spread.
	sizes []int32
	// scalingDown is the guarded scale-down that is not complete, nil for none.
	scalingDown *scalingDown
	// machines is whether the instances have Machines.
	machines machinesMode
	// blocked is why the replicas cannot be spread.
	blocked *problem
	// loans describes which shards have lent instances, "" for none.
	loans string
	// moved is set if instances move from one shard to another because of a shortfall.
	moved bool
}

// wantedShardGroup is a shard group as it should be.
type wantedShardGroup struct {
	// uid and resourceVersion are those of the existing object. With them an apply
	// cannot create an object again that was deleted meanwhile, and a former leader
	// cannot revert a size that it has not seen.
	uid, resourceVersion string
	spec                 v1beta1.NstanceShardGroupSpec
	// kept is the value of AnnotationKept, "" for none.
	kept string
	// replaces is the value of AnnotationReplaces, "" for none.
	replaces string
	// lent is the value of AnnotationLent, "" for none.
	lent string
	// afterOthers is set for a shard group that is written only if those before it were.
	afterOthers bool
}

// plan decides how the replicas of a pool are spread. It changes nothing while
// information is missing: sizes stay until the number of replicas and all shards are
// known.
func plan(observed observation) decision {
	switch {
	case observed.paused != "":
		return decision{statusOnly: true, sizes: currentSizes(observed.shards), machines: machinesMode{on: hasMachines(observed)}}
	case !observed.pool.DeletionTimestamp.IsZero():
		return planDeletion(observed)
	}
	machines := planMachines(observed)
	if blocked := checkPreconditions(observed); blocked != nil {
		return decision{blocked: blocked, machines: machines}
	}
	current := distribute.Total(currentSizes(observed.shards))
	if len(observed.machinePools) == 0 {
		// With the current number of instances, an import changes nothing.
		return decision{create: &current, machines: machines, blocked: &problem{
			v1beta1.ReasonNoMachinePool, fmt.Sprintf("MachinePool %q is being created", observed.pool.Name),
		}}
	}
	machinePool := observed.machinePools[0]
	if !replicasExplicit(observed, machinePool) && *machinePool.Spec.Replicas < current {
		return decision{raise: &current, machines: machines, blocked: &problem{
			v1beta1.ReasonNoMachinePool, fmt.Sprintf("the %d replicas of MachinePool %q are a default, and are being raised to the %d instances of the shards",
				*machinePool.Spec.Replicas, machinePool.Name, current),
		}}
	}

	d := decision{machines: machines}
	divided, loans, scalingDown := guardedSpread(observed, *machinePool.Spec.Replicas, machines.on)
	if loans != nil {
		d.moved, d.loans = loans.moved, describeLoans(observed, loans.lent, *machinePool.Spec.Replicas)
	}
	d.sizes, d.scalingDown = divided.sizes, scalingDown
	resized := resizes(observed.shards, d.sizes)
	for i, shard := range observed.shards {
		want := wantedShardGroup{spec: wantedSpec(observed.pool, shard.id, d.sizes[i]), kept: divided.kept(&shard)}
		want.spec.RemoveFirst = divided.removeFirst[i]
		want.lent = loans.noteOf(i)
		want.replaces = shard.replaces(want.spec.Size, resized)
		switch {
		case shard.group == nil && !shard.synced && hasMachines(observed):
			// The size is the one on the server, which is not known.
		case shard.group == nil:
			d.apply = append(d.apply, want)
		case !shard.group.DeletionTimestamp.IsZero():
			// It is created again after it was deleted.
		case !sameShardGroup(observed.pool, shard.group, want):
			want.uid, want.resourceVersion = string(shard.group.UID), shard.group.ResourceVersion
			d.apply = append(d.apply, want)
		}
	}
	if d.moved {
		shrinkFirst(observed.shards, d.apply)
	}
	for _, group := range observed.shardGroups {
		if shardRemoved(observed.pool, group) && group.DeletionTimestamp.IsZero() {
			// The pool is not deleted, so its policy does not apply: the instances are
			// replaced on the other shards.
			planPolicy(observed, group, "", &d)
		}
	}
	return d
}

// shardRemoved reports whether a shard group of the pool is on a shard that the pool
// no longer names.
func shardRemoved(pool *v1beta1.NstanceMachinePool, group *v1beta1.NstanceShardGroup) bool {
	return !slices.Contains(pool.Spec.Shards, group.Spec.Shard)
}

func wantedSpec(pool *v1beta1.NstanceMachinePool, shard string, size int32) v1beta1.NstanceShardGroupSpec {
	return v1beta1.NstanceShardGroupSpec{
		Group:         pool.Spec.Group,
		Shard:         v1beta1.Identifier(shard),
		Size:          size,
		GroupSettings: pool.Spec.GroupSettings,

		DeletionPolicy: deletionPolicy(pool),
	}
}
