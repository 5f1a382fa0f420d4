// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// observation is the cached state of a pool from which plan decides.
type observation struct {
	pool *v1beta1.NstanceMachinePool
	// machinePools refer to the pool.
	machinePools []*clusterv1.MachinePool
	// paused names the object that pauses the pool, "" if it is not paused.
	paused string
	// instances are the pool's instances on synced shards, except instances that are being
	// terminated.
	instances []instance
	// selected are the ids of the instances that scale-downs have selected.
	selected []string
	// nstanceMachines are the NstanceMachines of the pool, by name.
	nstanceMachines map[string]*v1beta1.NstanceMachine
	// foreign are the names of NstanceMachines outside the pool.
	foreign sets.Set[string]
	// machines are the Machines of the pool, by the name of their NstanceMachine.
	machines map[string]*clusterv1.Machine

	state syncState
	now   time.Time
}

// instance is an instance on a shard.
type instance struct{ id, shard string }

// decision has the changes that plan decides on.
type decision struct {
	// create are the instances that get an NstanceMachine.
	create []instance
	// conflicts are the ids of instances without an NstanceMachine, because an NstanceMachine
	// outside the pool has the name.
	conflicts []string
	// deleteSelected are the Machines of instances that scale-downs have selected.
	deleteSelected []*clusterv1.Machine
	// deleteMachines are the Machines of other instances to remove.
	deleteMachines []*clusterv1.Machine
	// deleteWithoutMachine are NstanceMachines to delete if their Machine is not on the API
	// server.
	deleteWithoutMachine []*v1beta1.NstanceMachine
	// release are the Machines of a deleted pool whose instances stay.
	release []*clusterv1.Machine
	// deleteOrphans are Machines to delete if their NstanceMachine is not on the API server.
	deleteOrphans []*clusterv1.Machine
	// orphanedSince is when each Machine was first observed without its NstanceMachine.
	orphanedSince map[types.UID]time.Time
	// requeueAfter is the delay of the next sync, 0 if no sync is needed.
	requeueAfter time.Duration
}

// plan decides which NstanceMachines and Machines of a pool are created and deleted.
func plan(observed observation) decision {
	if observed.paused != "" {
		return decision{orphanedSince: observed.state.orphanedSince}
	}
	var d decision
	if retains(observed.pool) {
		planRelease(observed, &d)
		return d
	}
	planCreation(observed, &d)
	planDeletion(observed, &d)
	planOrphans(observed, &d)
	return d
}

// planCreation gives each instance an NstanceMachine once. If the NstanceMachine was deleted,
// the instance is deleted too, even if the cache of the shard still has it.
func planCreation(observed observation, d *decision) {
	if !createsMachines(observed) {
		return
	}
	for _, instance := range observed.instances {
		_, has := observed.nstanceMachines[instance.id]
		_, had := observed.state.shardOf[instance.id]
		switch {
		case has || had:
		case observed.foreign.Has(instance.id):
			d.conflicts = append(d.conflicts, instance.id)
		default:
			d.create = append(d.create, instance)
		}
	}
}

// createsMachines reports whether Cluster API creates the Machines of new NstanceMachines.
func createsMachines(observed observation) bool {
	return observed.pool.Status.InfrastructureMachineKind != "" && !deleting(observed.pool) &&
		len(observed.machinePools) == 1 && !deleting(observed.machinePools[0])
}

// planDeletion removes the instances that a scale-down has selected (distribute.Divide), or all
// instances if the pool is being deleted, and the instances to replace. It deletes their
// Machines, because Cluster API drains the Node of a deleted Machine.
func planDeletion(observed observation, d *decision) {
	ids, machines := observed.selected, &d.deleteSelected
	if deleting(observed.pool) {
		ids, machines = slices.Sorted(maps.Keys(observed.nstanceMachines)), &d.deleteMachines
	}
	for _, id := range ids {
		if machine := observed.machines[id]; machine != nil {
			if !deleting(machine) {
				*machines = append(*machines, machine)
			}
			continue
		}
		// If Cluster API has yet to create the Machine, a later sync deletes the Machine.
		nstanceMachine := observed.nstanceMachines[id]
		if nstanceMachine != nil && !deleting(nstanceMachine) && getsNoMachines(observed) {
			d.deleteWithoutMachine = append(d.deleteWithoutMachine, nstanceMachine)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(observed.machines)) {
		machine := observed.machines[id]
		if replaceable(machine) && !slices.Contains(*machines, machine) {
			d.deleteMachines = append(d.deleteMachines, machine)
		}
	}
}

// getsNoMachines reports whether Cluster API creates no more Machines for the pool.
func getsNoMachines(observed observation) bool {
	return !slices.ContainsFunc(observed.machinePools, func(machinePool *clusterv1.MachinePool) bool { return !deleting(machinePool) })
}

// planOrphans deletes Machines whose NstanceMachine was deleted. Cluster API would wait for it
// for ever. Cluster API creates such a Machine if its cache still has a deleted
// NstanceMachine.
func planOrphans(observed observation, d *decision) {
	d.orphanedSince = map[types.UID]time.Time{}
	for _, id := range slices.Sorted(maps.Keys(observed.machines)) {
		machine := observed.machines[id]
		if observed.nstanceMachines[id] != nil || observed.foreign.Has(id) || deleting(machine) || slices.Contains(slices.Concat(d.deleteSelected, d.deleteMachines), machine) {
			continue
		}
		since, known := observed.state.orphanedSince[machine.UID]
		if !known {
			since = observed.now
		}
		d.orphanedSince[machine.UID] = since
		wait := orphanGrace - observed.now.Sub(since)
		if wait <= 0 {
			d.deleteOrphans = append(d.deleteOrphans, machine)
			wait = orphanGrace
		}
		if d.requeueAfter == 0 || wait < d.requeueAfter {
			d.requeueAfter = wait
		}
	}
}

// deleting reports whether an object is being deleted.
func deleting(object metav1.Object) bool { return !object.GetDeletionTimestamp().IsZero() }

// unhealthy reports whether a MachineHealthCheck requests the replacement of a Machine. It
// leaves the replacement to the owner of the Machine
// (https://cluster-api.sigs.k8s.io/tasks/automated-machine-management/healthchecking), but the
// owner, a MachinePool, does not replace it (docs/capi.md#machines).
func unhealthy(machine *clusterv1.Machine) bool {
	return meta.IsStatusConditionFalse(machine.Status.Conditions, clusterv1.MachineHealthCheckSucceededCondition) &&
		meta.IsStatusConditionFalse(machine.Status.Conditions, clusterv1.MachineOwnerRemediatedCondition)
}

// replaceable reports whether an unhealthy Machine may be deleted, so that its shard
// replaces the instance.
func replaceable(machine *clusterv1.Machine) bool {
	return unhealthy(machine) && !deleting(machine) && controllers.PausedBy(nil, machine) == ""
}
