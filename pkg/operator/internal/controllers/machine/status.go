// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/shard"
)

// newStatus returns the status after a sync. What the shard has not reported stays
// as it was. nstanceMachine is the newest version.
func newStatus(nstanceMachine *v1beta1.NstanceMachine, observed observation, done outcome, nodes []*corev1.Node) v1beta1.NstanceMachineStatus {
	status := *nstanceMachine.Status.DeepCopy()
	status.ObservedGeneration = nstanceMachine.Generation
	status.RequestID = observed.requestID
	if done.shard != "" {
		status.RequestID = string(nstanceMachine.UID)
	}
	status.Shard = cmp.Or(done.shard, observed.shardID)
	status.InstanceID = cmp.Or(done.instanceID, observed.instanceID)
	status.ProviderID = reportedProviderID(nstanceMachine, done)
	if len(nodes) == 1 {
		status.Addresses = addressesOf(nodes[0])
	}
	if done.instance != nil && usable(done.instance) {
		status.Initialization.Provisioned = ptr.To(true)
	}
	set := func(kind string, value metav1.ConditionStatus, reason, message string) {
		controller.SetCondition(&status.Conditions, nstanceMachine.Generation, kind, value, reason, message)
	}

	if status.InstanceID != "" {
		set(v1beta1.ConditionInstanceCreated, metav1.ConditionTrue, v1beta1.ReasonInstanceCreated, "")
	} else {
		blocked := notCreated(status, done)
		set(v1beta1.ConditionInstanceCreated, metav1.ConditionFalse, blocked.reason, blocked.message)
	}
	if message, deleted := deletedByServer(observed, done); deleted && !serverDeleted(nstanceMachine) && nstanceMachine.DeletionTimestamp.IsZero() && observed.paused == "" {
		set(v1beta1.ConditionServerDeleted, metav1.ConditionTrue, v1beta1.ReasonServerDeleted, message)
	}
	switch {
	case observed.drain.blocked:
		set(v1beta1.ConditionDrainsProgressing, metav1.ConditionFalse, v1beta1.ReasonDrainBlocked, observed.drain.message)
	case observed.drain.running:
		set(v1beta1.ConditionDrainsProgressing, metav1.ConditionTrue, v1beta1.ReasonDraining, observed.drain.message)
	case meta.FindStatusCondition(status.Conditions, v1beta1.ConditionDrainsProgressing) != nil:
		set(v1beta1.ConditionDrainsProgressing, metav1.ConditionTrue, v1beta1.ReasonNoDrains, "")
	}
	if observed.paused == "" {
		set(v1beta1.ConditionPaused, metav1.ConditionFalse, v1beta1.ReasonNotPaused, "")
	} else {
		set(v1beta1.ConditionPaused, metav1.ConditionTrue, v1beta1.ReasonPaused, observed.paused)
	}
	if ready, known := readiness(status, observed, done); known {
		status.Ready = ptr.To(ready.Status == metav1.ConditionTrue)
		set(v1beta1.ConditionReady, ready.Status, ready.Reason, ready.Message)
	}
	return status
}

// notCreated returns why there is no instance yet.
func notCreated(status v1beta1.NstanceMachineStatus, done outcome) problem {
	if done.problem != nil {
		return *done.problem
	}
	return problem{v1beta1.ReasonProvisioning, fmt.Sprintf("an instance is being requested from shard %q", status.Shard)}
}

// deletedByServer reports whether the shard has deleted the instance, and with which
// message. A shard that reports nothing has not deleted it.
func deletedByServer(observed observation, done outcome) (message string, deleted bool) {
	const byShard = "the shard has deleted the instance"
	switch {
	case observed.notice != nil && observed.notice.State == shard.Deleted:
		return cmp.Or(observed.notice.Reason, byShard), true
	case done.lost:
		return "the shard does not have the instance any more", true
	case done.instance != nil && done.instance.State == shard.InstanceTerminated:
		return byShard, true
	}
	return "", false
}

// readiness returns the condition Ready, and whether there is anything new to report.
func readiness(status v1beta1.NstanceMachineStatus, observed observation, done outcome) (ready metav1.Condition, known bool) {
	deleting := !observed.nstanceMachine.DeletionTimestamp.IsZero()
	deleted := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionServerDeleted)
	created := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionInstanceCreated)
	switch {
	case deleting && done.problem != nil:
		return notReady(v1beta1.ReasonDeleting, "the shard has not confirmed that the instance is deleted: %s", done.problem.message), true
	case deleting && observed.providerError != "":
		return notReady(v1beta1.ReasonDeleting, "the shard is deleting the instance: %s", observed.providerError), true
	case deleting:
		return notReady(v1beta1.ReasonDeleting, "the shard is deleting the instance"), true
	case deleted != nil && deleted.Status == metav1.ConditionTrue:
		return notReady(v1beta1.ReasonServerDeleted, "%s", deleted.Message), true
	case created.Status != metav1.ConditionTrue:
		return notReady(created.Reason, "%s", created.Message), true
	case observed.paused != "":
		return metav1.Condition{}, false
	case observed.notice != nil && observed.notice.State == shard.Deleting:
		return notReady(v1beta1.ReasonServerDeleted, "the shard is deleting the instance: %s", observed.notice.Reason), true
	case done.instance != nil:
		ready := instanceReadiness(done.instance)
		if ready.Reason == v1beta1.ReasonProvisioning && observed.providerError != "" {
			return notReady(v1beta1.ReasonProviderError, "%s", observed.providerError), true
		}
		return ready, true
	case done.problem != nil:
		return notReady(done.problem.reason, "%s", done.problem.message), true
	case done.instanceID != "":
		return notReady(v1beta1.ReasonProvisioning, "instance %s was requested", status.InstanceID), true
	case observed.providerError != "" && provisioning(status):
		// It is reported before the next query.
		return notReady(v1beta1.ReasonProviderError, "%s", observed.providerError), true
	}
	return metav1.Condition{}, false
}

// provisioning reports whether the instance did not run yet when it was last reported.
func provisioning(status v1beta1.NstanceMachineStatus) bool {
	current := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionReady)
	return current != nil && (current.Reason == v1beta1.ReasonProvisioning || current.Reason == v1beta1.ReasonProviderError)
}

// instanceReadiness returns the condition Ready that follows from an instance alone.
func instanceReadiness(instance *shard.Instance) metav1.Condition {
	switch {
	case usable(instance):
		return metav1.Condition{Status: metav1.ConditionTrue, Reason: v1beta1.ReasonReady}
	case instance.State == shard.InstanceRunning:
		return notReady(v1beta1.ReasonProvisioning, "instance %s has no provider id", instance.ID)
	default:
		return notReady(notRunningReason(instance.State), "instance %s is %s", instance.ID, instance.State)
	}
}

func notReady(reason, format string, args ...any) metav1.Condition {
	return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// notRunningReason returns why an instance in a state does not run.
func notRunningReason(state shard.InstanceState) string {
	switch state {
	case shard.InstanceStopped, shard.InstanceFailed:
		return v1beta1.ReasonInstanceFailed
	case shard.InstanceTerminating, shard.InstanceTerminated:
		return v1beta1.ReasonServerDeleted
	default:
		return v1beta1.ReasonProvisioning
	}
}

// usable reports whether an instance is running and has a provider id, without which
// its Node cannot be found.
func usable(instance *shard.Instance) bool {
	return instance.State == shard.InstanceRunning && instance.ProviderID != ""
}

// upToDate reports whether the status of a pool member is what its shard lists. One
// that is being deleted does not depend on the list.
func upToDate(nstanceMachine *v1beta1.NstanceMachine, listed *shard.Instance, missing bool) bool {
	if !nstanceMachine.DeletionTimestamp.IsZero() || serverDeleted(nstanceMachine) {
		return true
	}
	if listed == nil {
		return !missing
	}
	if listed.ProviderID != "" && listed.ProviderID != nstanceMachine.Status.ProviderID {
		return false
	}
	current := meta.FindStatusCondition(nstanceMachine.Status.Conditions, v1beta1.ConditionReady)
	wanted := instanceReadiness(listed)
	if wanted.Reason == v1beta1.ReasonProvisioning && current != nil && current.Reason == v1beta1.ReasonProviderError {
		// The list does not have the errors of the provider.
		return true
	}
	return current != nil && current.Reason == wanted.Reason &&
		// The message from a deletion notice has more details.
		(current.Message == wanted.Message || wanted.Reason == v1beta1.ReasonServerDeleted)
}
