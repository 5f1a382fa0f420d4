// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

// observation is what the caches say about a machine at the moment of a sync.
type observation struct {
	machine *v1beta1.NstanceMachine
	// owner is the Machine that owns it, nil when there is none; orphan tells that
	// there was one, and that the API server has it no more.
	owner  *clusterv1.Machine
	orphan bool
	// cluster is nil when there is none.
	cluster *clusterv1.Cluster
	// paused is what pauses the machine, "" when nothing does.
	paused string

	// configured, reachable and lost are about the shard of the machine: whether it
	// is in the configuration, is connected, and if not why.
	configured, reachable bool
	lost                  error
	// etag is that of the group on the shard, "" when it has none.
	etag string
	// listed is what the shard lists of the instance of a pool, nil for nothing.
	// missing tells that it would be listed if there were one.
	listed  *shard.Instance
	missing bool
	// session is that of the watch of the shard's instances.
	session int64
	// notice is what the shard announced of the instance's end, nil for nothing.
	notice *shard.Notice
	drain  drain

	now time.Time
}

// drain is how the drain of the instance's Node gets on.
type drain struct {
	blocked, running bool
	message          string
}

// trouble is why something is not as it should be.
type trouble struct{ reason, message string }

// step is the one thing that a sync does besides reporting. The zero value is
// none: all is well, or nothing can be done.
type step int

const (
	// claim: write down the shard and the request id.
	claim step = iota + 1
	// order: ask the shard for the instance that was written down.
	order
	// hear: take what the shard lists of the instance.
	hear
	// ask: ask the shard what the instance does.
	ask
	// end: have the shard end the instance.
	end
	// release: let the API server remove the machine.
	release
	// removeOwner: delete the Machine, whose instance is gone.
	removeOwner
	// discard: delete the machine, which nobody owns any more.
	discard
)

// decision is a step, or why there is none, and when to look again.
type decision struct {
	step    step
	trouble *trouble
	wait    time.Duration
}

// plan decides on the next step. It never acts on missing information: a shard
// that is not connected keeps everything as it is.
func plan(seen observation, recalled memory) decision {
	machine := seen.machine
	switch {
	case seen.paused != "":
		return decision{trouble: &trouble{v1beta1.ReasonPaused, seen.paused}}
	case !machine.DeletionTimestamp.IsZero():
		return planEnd(seen, recalled)
	case seen.orphan && !poolMember(machine):
		// Cluster API makes the Machine of a pool's instance again, as long as there
		// is a MachinePool.
		return decision{step: discard}
	case serverDeleted(machine):
		return planServerDeleted(seen)
	case instanceOf(machine) != "":
		return planFollowing(seen, recalled)
	default:
		return planOrder(seen, recalled)
	}
}

// planOrder brings a machine to its instance. What the shard is asked for is
// written down before: a process that ends in between is followed by one that
// asks for the same.
func planOrder(seen observation, recalled memory) decision {
	if wrong := unready(seen); wrong != nil {
		return decision{trouble: wrong}
	}
	if !claimed(seen.machine) {
		return decision{step: claim}
	}
	if wrong := unusable(seen); wrong != nil {
		return decision{trouble: wrong}
	}
	if recalled.refused.holds(seen.etag, seen.now) {
		return decision{
			trouble: &trouble{v1beta1.ReasonInstanceRefused, recalled.refused.message},
			wait:    recalled.refused.until.Sub(seen.now),
		}
	}
	return decision{step: order}
}

// planFollowing asks for an instance until it runs, and once after each time that
// something may have happened to it unheard. What the shard lists it is not asked
// for; what it should list and does not it is asked for until it is clear why.
func planFollowing(seen observation, recalled memory) decision {
	if seen.notice != nil && seen.notice.State == shard.Deleted {
		return decision{}
	}
	wrong := unusable(seen)
	if seen.listed != nil && (wrong == nil || runs(seen.listed)) {
		return decision{step: hear}
	}
	ready := ready(seen.machine)
	if ready && !seen.missing && recalled.verified >= seen.session {
		return decision{}
	}
	if wrong != nil {
		if ready {
			return decision{}
		}
		return decision{trouble: wrong}
	}
	if wait := recalled.asking.wait(seen.now); (!ready || seen.missing) && wait > 0 {
		return decision{wait: wait}
	}
	return decision{step: ask}
}

// planServerDeleted hands the end of an instance on to the Machine, which ends the
// machine (operator document).
func planServerDeleted(seen observation) decision {
	switch {
	case seen.owner == nil:
		return decision{step: discard}
	case seen.owner.DeletionTimestamp.IsZero():
		return decision{step: removeOwner}
	default:
		return decision{}
	}
}

// planEnd lets a machine go when its shard has said that the instance is gone, or
// has never been asked for one. By then Cluster API has drained its Node.
func planEnd(seen observation, recalled memory) decision {
	machine := seen.machine
	gone := serverDeleted(machine) || seen.notice != nil && seen.notice.State == shard.Deleted
	if !held(machine) {
		return decision{}
	}
	if gone || shardOf(machine) == "" || instanceOf(machine) == "" && !claimed(machine) {
		return decision{step: release}
	}
	if wrong := unusable(seen); wrong != nil {
		return decision{trouble: wrong}
	}
	if instanceOf(machine) == "" {
		// The order may have been taken without an answer. Given again it tells the
		// id of what is to be ended.
		return decision{step: order}
	}
	if undrained(seen) {
		return decision{trouble: &trouble{v1beta1.ReasonDeleting, "no Machine owns it, and the shard is draining it"}}
	}
	if wait := recalled.ending.wait(seen.now); wait > 0 {
		return decision{wait: wait}
	}
	return decision{step: end}
}

// undrained tells whether it is only the shard that drains an instance of a pool:
// there was no Machine for which Cluster API would have. The shard ends it in time.
func undrained(seen observation) bool {
	return poolMember(seen.machine) && metav1.GetControllerOfNoCopy(seen.machine) == nil &&
		seen.notice != nil && seen.notice.State == shard.Draining
}

// unready is why no instance may be ordered yet, nil when it may (CAPI contract).
func unready(seen observation) *trouble {
	waiting := func(format string, args ...any) *trouble {
		return &trouble{v1beta1.ReasonWaitingForMachine, fmt.Sprintf(format, args...)}
	}
	switch {
	case seen.owner == nil:
		return waiting("no Machine owns it")
	case !seen.owner.DeletionTimestamp.IsZero():
		return waiting("Machine %q is being deleted", seen.owner.Name)
	case !provisioned(seen.cluster):
		return waiting("the infrastructure of the Cluster is not provisioned")
	case seen.owner.Spec.Bootstrap.DataSecretName == nil:
		return waiting("Machine %q has no bootstrap data", seen.owner.Name)
	}
	return nil
}

// unusable is why the shard of a machine cannot be asked, nil when it can.
func unusable(seen observation) *trouble {
	switch {
	case !seen.configured:
		return &trouble{v1beta1.ReasonUnknownShard, fmt.Sprintf("shard %q is not configured", shardOf(seen.machine))}
	case seen.reachable:
		return nil
	case seen.lost != nil:
		return &trouble{v1beta1.ReasonShardUnreachable, shard.Message(seen.lost)}
	default:
		return &trouble{v1beta1.ReasonNotSynced, "the shard is being connected"}
	}
}

// claimed tells whether it is written down where the instance is asked for, and
// as what.
func claimed(machine *v1beta1.NstanceMachine) bool {
	return machine.Status.Shard != "" && machine.Status.RequestID != ""
}

// ready tells whether the instance ran when it was last heard of. Then it is taken
// to run until its shard says otherwise.
func ready(machine *v1beta1.NstanceMachine) bool {
	return ptr.Deref(machine.Status.Ready, false) && machine.Status.ProviderID != ""
}

func held(machine *v1beta1.NstanceMachine) bool {
	return slices.Contains(machine.Finalizers, v1beta1.FinalizerMachine)
}

func serverDeleted(machine *v1beta1.NstanceMachine) bool {
	return meta.IsStatusConditionTrue(machine.Status.Conditions, v1beta1.ConditionServerDeleted)
}

func provisioned(cluster *clusterv1.Cluster) bool {
	return cluster != nil && ptr.Deref(cluster.Status.Initialization.InfrastructureProvisioned, false)
}
