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

// observation is what the caches say about a Pod and its machine at the moment of
// a sync.
type observation struct {
	uid types.UID
	// pod is the Pod, nil when there is none that asks. While podsSynced is false
	// nil means nothing.
	pod        *metav1.PartialObjectMetadata
	podsSynced bool
	// machine and nstanceMachine are what was made for the Pod, nil when it was not.
	machine        *clusterv1.Machine
	nstanceMachine *v1beta1.NstanceMachine
	// nameTaken: there is something else by the name of one of them.
	nameTaken bool
	// cluster is what Machines belong to, nil when there is none yet.
	cluster *clusterv1.Cluster
	// groups is what is known of the group that the Pod names.
	groups groupState
}

// groupState is what the shards say about one group.
type groupState struct {
	// found: a shard has it. complete: the groups of all shards are known.
	found, complete bool
	// others are the groups that there are, sorted. They are known only when the
	// group was not found.
	others []string
}

// step is what a sync does.
type step int

const (
	// nothing: the Pod has what it asks for, or something is awaited.
	nothing step = iota
	// makePair: there is neither a Machine nor an NstanceMachine.
	makePair
	// makeMachine: the Machine is missing that the NstanceMachine waits for.
	makeMachine
	// removePair: the Pod seems to be gone.
	removePair
	// removeMachine: the Machine's NstanceMachine seems to be gone.
	removeMachine
)

// decision is a step, and what to tell the Pod.
type decision struct {
	step      step
	order     order
	complaint *complaint
}

// plan decides about one Pod.
func plan(seen observation) decision {
	switch {
	case pausedBy(seen) != "":
		return decision{}
	case seen.pod == nil:
		return planWithoutPod(seen)
	case seen.machine != nil && seen.nstanceMachine != nil, leaving(seen.machine), leaving(seen.nstanceMachine):
		return decision{}
	case seen.machine != nil:
		return decision{step: removeMachine}
	case leaving(seen.pod), seen.cluster == nil, leaving(seen.cluster):
		return decision{}
	case seen.nameTaken:
		return decision{complaint: nameTaken(seen.uid)}
	case seen.nstanceMachine != nil:
		// One that had a Machine goes after it. A new Machine would be left behind.
		if metav1.GetControllerOfNoCopy(seen.nstanceMachine) != nil {
			return decision{}
		}
		return decision{step: makeMachine}
	default:
		return planNew(seen)
	}
}

// planWithoutPod decides about what is left of a Pod that does not ask, or does
// not any more. The machine goes with its Machine, which Cluster API drains.
func planWithoutPod(seen observation) decision {
	gone := seen.machine == nil && seen.nstanceMachine == nil
	if gone || !seen.podsSynced || leaving(seen.machine) || seen.machine == nil && leaving(seen.nstanceMachine) {
		return decision{}
	}
	return decision{step: removePair}
}

// planNew decides whether a Pod gets a machine.
func planNew(seen observation) decision {
	wanted, invalid := orderOf(seen.pod)
	switch {
	case invalid != nil:
		return decision{complaint: invalid}
	case seen.groups.found:
		return decision{step: makePair, order: wanted}
	case seen.groups.complete:
		return decision{complaint: unknownGroup(wanted.group, seen.groups.others)}
	default:
		return decision{}
	}
}

// foreign tells whether an object has the name of a Pod's machine and is not it.
func foreign[T any, O object[T]](uid types.UID, object O) bool {
	return object != nil && object.GetLabels()[v1beta1.LabelPodUID] != string(uid)
}

// leaving tells whether the deletion of an object was asked for.
func leaving[T any, O object[T]](object O) bool {
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
