// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmachine

import (
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// observation is what is known of a pool at the moment of a sync.
type observation struct {
	pool *v1beta1.NstanceMachinePool
	// machinePools are those that refer to the pool.
	machinePools []*clusterv1.MachinePool
	// paused is what pauses the pool, "" when nothing does.
	paused string
	// listed are the instances that the shards have of the pool, without those that
	// end. A shard that is not known completely has none here.
	listed []instance
	// chosen are the ids of the instances that were chosen to go.
	chosen []string
	// members are the NstanceMachines of the pool, by name.
	members map[string]*v1beta1.NstanceMachine
	// strangers are the names of NstanceMachines that are not members of the pool.
	strangers sets.Set[string]
	// machines are the Machines of the pool, by the name of their NstanceMachine.
	machines map[string]*clusterv1.Machine

	memory memory
	now    time.Time
}

// instance is one that a shard runs or is about to.
type instance struct{ id, shard string }

// decision is what to do about a pool's members.
type decision struct {
	// create are the instances that get an NstanceMachine.
	create []instance
	// taken are the ids of instances that get none, because something else has the
	// name.
	taken []string
	// removeMachines are Machines whose instances are to go.
	removeMachines []*clusterv1.Machine
	// removeMembers are members that are to go and have no Machine, if the API
	// server has none either.
	removeMembers []*v1beta1.NstanceMachine
	// removeOrphans are Machines whose NstanceMachine is gone, if it is not on the
	// API server either.
	removeOrphans []*clusterv1.Machine
	// sighted is since when which Machines have had no NstanceMachine.
	sighted map[types.UID]time.Time
	// wait is when to look again, 0 for never.
	wait time.Duration
}

// plan decides about the members of a pool.
func plan(seen observation) decision {
	if seen.paused != "" {
		return decision{sighted: seen.memory.sighted}
	}
	var d decision
	planCreation(seen, &d)
	planRemoval(seen, &d)
	planOrphans(seen, &d)
	return d
}

// planCreation gives each instance its NstanceMachine, once: when that is gone its
// instance is, whatever the cache of the shard says yet.
func planCreation(seen observation, d *decision) {
	if !createsMachines(seen) {
		return
	}
	for _, instance := range seen.listed {
		_, is := seen.members[instance.id]
		_, was := seen.memory.had[instance.id]
		switch {
		case is || was:
		case seen.strangers.Has(instance.id):
			d.taken = append(d.taken, instance.id)
		default:
			d.create = append(d.create, instance)
		}
	}
}

// createsMachines tells whether Cluster API would make the Machines of new members.
func createsMachines(seen observation) bool {
	return seen.pool.Status.InfrastructureMachineKind != "" && !leaving(seen.pool) &&
		len(seen.machinePools) == 1 && !leaving(seen.machinePools[0])
}

// planRemoval lets go of instances by deleting their Machines, which Cluster API
// drains: of those that were chosen, and of those that are to be replaced. A member
// whose Machine is not there yet waits for it, unless nobody is going to make it.
func planRemoval(seen observation, d *decision) {
	going := seen.chosen
	if leaving(seen.pool) {
		going = slices.Sorted(maps.Keys(seen.members))
	}
	for _, id := range going {
		machine, member := seen.machines[id], seen.members[id]
		switch {
		case machine != nil:
			if !leaving(machine) {
				d.removeMachines = append(d.removeMachines, machine)
			}
		case member != nil && !leaving(member) && abandoned(seen):
			d.removeMembers = append(d.removeMembers, member)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(seen.machines)) {
		machine := seen.machines[id]
		if replaceable(machine) && !slices.Contains(d.removeMachines, machine) {
			d.removeMachines = append(d.removeMachines, machine)
		}
	}
}

// abandoned tells whether Cluster API makes no Machines for the pool's members any
// more.
func abandoned(seen observation) bool {
	return !slices.ContainsFunc(seen.machinePools, func(machinePool *clusterv1.MachinePool) bool { return !leaving(machinePool) })
}

// planOrphans removes Machines whose NstanceMachine is gone. Cluster API waits for
// it for ever. It makes such a Machine itself when it has not heard yet that the
// NstanceMachine is gone.
func planOrphans(seen observation, d *decision) {
	d.sighted = map[types.UID]time.Time{}
	for _, id := range slices.Sorted(maps.Keys(seen.machines)) {
		machine := seen.machines[id]
		if seen.members[id] != nil || seen.strangers.Has(id) || leaving(machine) || slices.Contains(d.removeMachines, machine) {
			continue
		}
		first, before := seen.memory.sighted[machine.UID]
		if !before {
			first = seen.now
		}
		d.sighted[machine.UID] = first
		wait := orphanGrace - seen.now.Sub(first)
		if wait <= 0 {
			d.removeOrphans = append(d.removeOrphans, machine)
			wait = orphanGrace
		}
		if d.wait == 0 || wait < d.wait {
			d.wait = wait
		}
	}
}

// leaving tells whether the deletion of an object was asked for.
func leaving(object metav1.Object) bool { return !object.GetDeletionTimestamp().IsZero() }
