// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// observation is the state of a Pod and its machine in the caches.
type observation struct {
	uid types.UID
	// pod is nil when no Pod requests the machine, or when podsSynced is false.
	pod        *metav1.PartialObjectMetadata
	podsSynced bool
	// machine and nstanceMachine are the pair of the Pod, nil when they do not exist.
	machine        *clusterv1.Machine
	nstanceMachine *v1beta1.NstanceMachine
	// nameTaken: another object has the name of one of them.
	nameTaken bool
	// cluster is the Cluster of the Machines, nil when there is none yet.
	cluster *clusterv1.Cluster
	// groups is what the shards report about the group that the Pod names.
	groups groupState
}

// groupState is what the shards report about one group.
type groupState struct {
	// found: a shard has it. complete: the groups of all shards are known.
	found, complete bool
	// others are all groups, sorted. They are set only when the group was not found.
	others []string
}

// step is what a sync does.
type step int

const (
	// nothing: the Pod has its machine, or waits for something.
	nothing step = iota
	// createPair: there is neither a Machine nor an NstanceMachine.
	createPair
	// createMachine: the Machine is missing that the NstanceMachine waits for.
	createMachine
	// deletePair: the cache does not have the Pod.
	deletePair
	// deleteStrayMachine: the cache does not have the NstanceMachine of the Machine.
	deleteStrayMachine
)

// decision is a step, or why the Pod gets no machine.
type decision struct {
	step      step
	request   request
	rejection *rejection
}

// plan decides about one Pod.
func plan(seen observation) decision {
	switch {
	case pausedBy(seen) != "":
		return decision{}
	case seen.pod == nil:
		return planWithoutPod(seen)
	case seen.machine != nil && seen.nstanceMachine != nil, beingDeleted(seen.machine), beingDeleted(seen.nstanceMachine):
		return decision{}
	case seen.machine != nil:
		return decision{step: deleteStrayMachine}
	case beingDeleted(seen.pod), seen.cluster == nil, beingDeleted(seen.cluster):
		return decision{}
	case seen.nameTaken:
		return decision{rejection: nameTaken(seen.uid)}
	case seen.nstanceMachine != nil:
		// One that had a Machine is deleted after it. A new Machine would be left behind.
		if metav1.GetControllerOfNoCopy(seen.nstanceMachine) != nil {
			return decision{}
		}
		return decision{step: createMachine}
	default:
		return planNew(seen)
	}
}

// planWithoutPod decides about a pair whose Pod the cache does not have. The Machine is
// deleted, so that Cluster API drains its Node.
func planWithoutPod(seen observation) decision {
	deleted := seen.machine == nil && seen.nstanceMachine == nil
	if deleted || !seen.podsSynced || beingDeleted(seen.machine) || seen.machine == nil && beingDeleted(seen.nstanceMachine) {
		return decision{}
	}
	return decision{step: deletePair}
}

// planNew decides whether a Pod gets a machine.
func planNew(seen observation) decision {
	wanted, invalid := requestOf(seen.pod)
	switch {
	case invalid != nil:
		return decision{rejection: invalid}
	case seen.groups.found:
		return decision{step: createPair, request: wanted}
	case seen.groups.complete:
		return decision{rejection: unknownGroup(wanted.group, seen.groups.others)}
	default:
		return decision{}
	}
}

// foreign reports whether an object has the name of a Pod's machine and is not it.
func foreign[T any, O object[T]](uid types.UID, object O) bool {
	return object != nil && object.GetLabels()[v1beta1.LabelPodUID] != string(uid)
}

// beingDeleted reports whether an object is being deleted.
func beingDeleted[T any, O object[T]](object O) bool {
	return object != nil && !object.GetDeletionTimestamp().IsZero()
}

// object is a pointer to an object, which may be nil.
type object[T any] interface {
	*T
	metav1.Object
}

func pausedBy(seen observation) string {
	var pair []metav1.Object
	if seen.machine != nil {
		pair = append(pair, seen.machine)
	}
	if seen.nstanceMachine != nil {
		pair = append(pair, seen.nstanceMachine)
	}
	return controller.PausedBy(seen.cluster, pair...)
}
