// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// observation is the state of a Pod and its machine in the caches.
type observation struct {
	uid types.UID
	// pod is nil when no Pod requests the machine, or when podsSynced is false.
	pod        *metav1.PartialObjectMetadata
	podsSynced bool
	// refused is why the Pod may not request a machine, nil when it may.
	refused *rejection
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
func plan(observed observation) decision {
	switch {
	case pausedBy(observed) != "":
		return decision{}
	case observed.pod == nil:
		return planWithoutPod(observed)
	case beingDeleted(observed.machine), beingDeleted(observed.nstanceMachine):
		return decision{}
	case observed.machine != nil && observed.nstanceMachine != nil:
		return decision{rejection: machineProblem(observed.nstanceMachine)}
	case observed.machine != nil:
		return decision{step: deleteStrayMachine}
	case beingDeleted(observed.pod), observed.cluster == nil, beingDeleted(observed.cluster):
		return decision{}
	case observed.nameTaken:
		return decision{rejection: nameTaken(observed.uid)}
	case observed.nstanceMachine != nil:
		// One that had a Machine is deleted after it. A new Machine would be left behind.
		if metav1.GetControllerOfNoCopy(observed.nstanceMachine) != nil {
			return decision{}
		}
		return decision{step: createMachine}
	default:
		return planNew(observed)
	}
}

// planWithoutPod decides about a pair whose Pod the cache does not have. The Machine is
// deleted, so that Cluster API drains its Node.
func planWithoutPod(observed observation) decision {
	deleted := observed.machine == nil && observed.nstanceMachine == nil
	if deleted || !observed.podsSynced || beingDeleted(observed.machine) || observed.machine == nil && beingDeleted(observed.nstanceMachine) {
		return decision{}
	}
	return decision{step: deletePair}
}

// planNew decides whether a Pod gets a machine.
func planNew(observed observation) decision {
	wanted, invalid := requestOf(observed.pod)
	switch {
	case invalid != nil:
		return decision{rejection: invalid}
	case observed.refused != nil:
		return decision{rejection: observed.refused}
	case observed.groups.found:
		return decision{step: createPair, request: wanted}
	case observed.groups.complete:
		return decision{rejection: unknownGroup(wanted.group, observed.groups.others)}
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

func pausedBy(observed observation) string {
	var pair []metav1.Object
	if observed.machine != nil {
		pair = append(pair, observed.machine)
	}
	if observed.nstanceMachine != nil {
		pair = append(pair, observed.nstanceMachine)
	}
	return controllers.PausedBy(observed.cluster, pair...)
}
