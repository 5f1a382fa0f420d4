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
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// problem is why a step cannot be done, as reason and message of a condition.
type problem struct{ reason, message string }

// step is the action of a sync before it reports. The zero value is no action.
type step int

const (
	// assignShard: store the shard and the request id.
	assignShard step = iota + 1
	// reassignShard: store another shard, because the shard has declined the request.
	reassignShard
	// createInstance: send the create request that was stored.
	createInstance
	// useListed: report the instance as the shard lists it.
	useListed
	// queryInstance: query the shard for the instance.
	queryInstance
	// deleteInstance: have the shard delete the instance.
	deleteInstance
	// removeFinalizer: let the API server delete the NstanceMachine.
	removeFinalizer
	// abandonInstance: let the API server delete the NstanceMachine, whose shard is lost.
	abandonInstance
	// deleteMachine: delete the Machine because its instance was deleted.
	deleteMachine
	// deleteNstanceMachine: delete the NstanceMachine because its Machine was deleted.
	deleteNstanceMachine
)

// decision is a step, or the problem that prevents it, and the delay until the next sync.
type decision struct {
	step    step
	problem *problem
	wait    time.Duration
}

// plan decides on the next step. Missing information changes nothing: while a shard is not
// connected, everything stays unchanged.
func plan(observed observation, state syncState) decision {
	switch {
	case observed.paused != "":
		return decision{problem: &problem{v1beta1.ReasonPaused, observed.paused}}
	case !observed.nstanceMachine.DeletionTimestamp.IsZero():
		return planDeletion(observed, state)
	case observed.machineDeleted && !observed.poolMember:
		// Cluster API creates the Machine of a pool member again as long as its MachinePool
		// exists.
		return decision{step: deleteNstanceMachine}
	case serverDeleted(observed.nstanceMachine):
		return planServerDeleted(observed)
	case observed.instanceID != "":
		return planInstance(observed, state)
	default:
		return planCreation(observed, state)
	}
}

// planCreation creates the instance. The request is stored before it is sent, so that the next
// process repeats the same request after a crash.
func planCreation(observed observation, state syncState) decision {
	if blocked := checkPreconditions(observed); blocked != nil {
		return decision{problem: blocked}
	}
	if blocked := checkUnknown(observed); blocked != nil {
		return decision{problem: blocked}
	}
	if !assigned(observed) {
		return decision{step: assignShard}
	}
	if blocked := checkShard(observed); blocked != nil {
		return decision{problem: blocked}
	}
	if state.rejection.applies(observed.etag, observed.now) {
		refused := decision{
			problem: &problem{state.rejection.reason, state.rejection.message},
			wait:    state.rejection.until.Sub(observed.now),
		}
		if state.rejection.declined && movable(observed) {
			refused.step = reassignShard
		}
		return refused
	}
	return decision{step: createInstance}
}

// planInstance follows an instance. It is queried until it runs, and then once in each session
// of the watch of notices. An instance that the shard lists is not queried. A pool member's
// instance that is missing in the list is queried until the reason is known.
func planInstance(observed observation, state syncState) decision {
	if observed.notice != nil && observed.notice.State == shard.Deleted {
		return decision{}
	}
	blocked := checkShard(observed)
	if observed.listed != nil && (blocked == nil || usable(observed.listed)) {
		return decision{step: useListed}
	}
	ready := ready(observed.nstanceMachine)
	if ready && !observed.missing && state.verifiedSession >= observed.session {
		return decision{}
	}
	if blocked != nil {
		if ready {
			return decision{}
		}
		return decision{problem: blocked}
	}
	if wait := state.queries.remaining(observed.now); (!ready || observed.missing) && wait > 0 {
		return decision{wait: wait}
	}
	return decision{step: queryInstance}
}

// planServerDeleted deletes the Machine of an instance that its shard has deleted. Cluster API
// then deletes the NstanceMachine (docs/capi.md#deletion).
func planServerDeleted(observed observation) decision {
	switch {
	case observed.machine == nil:
		return decision{step: deleteNstanceMachine}
	case observed.machine.DeletionTimestamp.IsZero():
		return decision{step: deleteMachine}
	default:
		return decision{}
	}
}

// planDeletion removes the finalizer if the shard has confirmed that the instance is deleted,
// if no instance was ever requested, or if the instance is retained. Cluster API has drained
// the Node before it deletes the NstanceMachine.
func planDeletion(observed observation, state syncState) decision {
	deleted := serverDeleted(observed.nstanceMachine) || observed.notice != nil && observed.notice.State == shard.Deleted
	if !hasFinalizer(observed.nstanceMachine) {
		return decision{}
	}
	if deleted || observed.claimedBy != "" || observed.retained {
		return decision{step: removeFinalizer}
	}
	if blocked := checkUnknown(observed); blocked != nil {
		return decision{problem: blocked}
	}
	if observed.shardID == "" || observed.instanceID == "" && !assigned(observed) {
		return decision{step: removeFinalizer}
	}
	if blocked := checkShard(observed); blocked != nil {
		if !observed.configured {
			return planAbandonment(observed, *blocked)
		}
		return decision{problem: blocked}
	}
	if observed.instanceID == "" {
		// The create request may have been carried out, and its reply lost. Repeating
		// it returns the id of the instance to delete.
		return decision{step: createInstance}
	}
	if drainedByShardOnly(observed) {
		return decision{problem: &problem{v1beta1.ReasonDeleting, "no Machine owns it, and the shard is draining it"}}
	}
	if wait := state.deletions.remaining(observed.now); wait > 0 {
		return decision{wait: wait}
	}
	return decision{step: deleteInstance}
}

// drainedByShardOnly reports whether the shard is draining an instance of a pool that had no
// Machine, so that Cluster API has not drained its Node. The shard deletes the instance after
// the drain.
func drainedByShardOnly(observed observation) bool {
	return observed.poolMember && metav1.GetControllerOfNoCopy(observed.nstanceMachine) == nil &&
		observed.notice != nil && observed.notice.State == shard.Draining
}

// checkPreconditions returns why no instance may be requested yet, nil if it may be requested
// (docs/capi.md#machines).
func checkPreconditions(observed observation) *problem {
	waiting := func(format string, args ...any) *problem {
		return &problem{v1beta1.ReasonWaitingForMachine, fmt.Sprintf(format, args...)}
	}
	switch {
	case observed.machine == nil:
		return waiting("no Machine owns it")
	case !observed.machine.DeletionTimestamp.IsZero():
		return waiting("Machine %q is being deleted", observed.machine.Name)
	case !provisioned(observed.cluster):
		return waiting("the infrastructure of the Cluster is not provisioned")
	case observed.machine.Spec.Bootstrap.DataSecretName == nil:
		return waiting("Machine %q has no bootstrap data", observed.machine.Name)
	}
	if unused := capi.UnusedBootstrap(&observed.machine.Spec.Bootstrap); unused != "" {
		return waiting("Machine %q has bootstrap data that is not used, %s: the shard provides the userdata of its instances; set spec.bootstrap.dataSecretName to \"\", without a configRef", observed.machine.Name, unused)
	}
	return checkFailureDomain(observed)
}

// checkFailureDomain returns a problem if the spec and the Machine name two shards: the
// instance must be in the failure domain of the Machine
// (https://cluster-api.sigs.k8s.io/developer/providers/contracts/infra-machine#inframachine-failure-domain).
func checkFailureDomain(observed observation) *problem {
	own, domain := string(observed.nstanceMachine.Spec.Shard), observed.machine.Spec.FailureDomain
	if own == "" || domain == "" || own == domain {
		return nil
	}
	return &problem{v1beta1.ReasonInstanceRefused, fmt.Sprintf("spec.shard is %q, and spec.failureDomain of Machine %q is %q; they must be the same, or one of them unset",
		own, observed.machine.Name, domain)}
}

// checkUnknown returns why the instance of the NstanceMachine is not known, nil if it is known
// or does not exist. A second instance must not be created, and an instance that may exist
// must not be lost.
func checkUnknown(observed observation) *problem {
	switch id := observed.nstanceMachine.Spec.ProviderID; {
	case observed.claimedBy != "":
		return &problem{v1beta1.ReasonInstanceUnknown, fmt.Sprintf("the instance of annotation %s is that of NstanceMachine %q; without the annotation and spec.providerID, an instance is created",
			v1beta1.AnnotationRequest, observed.claimedBy)}
	case observed.shardID == "" && id != "":
		return &problem{v1beta1.ReasonInstanceUnknown, fmt.Sprintf("spec.providerID is %q, and neither the status nor annotation %s names the shard; set the annotations %s and %s",
			id, v1beta1.AnnotationRequest, v1beta1.AnnotationRequest, v1beta1.AnnotationInstanceID)}
	}
	return nil
}

// checkShard returns why the shard cannot be called, nil if it can be called.
func checkShard(observed observation) *problem {
	switch {
	case !observed.configured:
		return &problem{v1beta1.ReasonUnknownShard, fmt.Sprintf("shard %q is not configured", observed.shardID)}
	case observed.reachable:
		return nil
	case observed.lost != nil:
		return &problem{controllers.UnreachableReason(observed.lost), shard.Message(observed.lost)}
	default:
		return &problem{v1beta1.ReasonNotSynced, "the shard is being connected"}
	}
}

// assigned reports whether the status has the shard and the id of the create request.
func assigned(observed observation) bool {
	return observed.shardID != "" && observed.requestID != ""
}

// ready reports whether the instance was running when it was last reported. It
// counts as running until its shard reports something else.
func ready(nstanceMachine *v1beta1.NstanceMachine) bool {
	return ptr.Deref(nstanceMachine.Status.Ready, false) && nstanceMachine.Status.ProviderID != ""
}

func hasFinalizer(nstanceMachine *v1beta1.NstanceMachine) bool {
	return slices.Contains(nstanceMachine.Finalizers, v1beta1.FinalizerMachine)
}

func serverDeleted(nstanceMachine *v1beta1.NstanceMachine) bool {
	return meta.IsStatusConditionTrue(nstanceMachine.Status.Conditions, v1beta1.ConditionServerDeleted)
}

func provisioned(cluster *clusterv1.Cluster) bool {
	return cluster != nil && ptr.Deref(cluster.Status.Initialization.InfrastructureProvisioned, false)
}
