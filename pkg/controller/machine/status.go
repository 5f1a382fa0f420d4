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
	"nstance.dev/operator/pkg/shard"
)

// newStatus is the status of a machine after a sync. What the shard has not told
// stays as it was. machine is the one of the newest version.
func newStatus(machine *v1beta1.NstanceMachine, seen observation, done outcome, nodes []*corev1.Node) v1beta1.NstanceMachineStatus {
	status := *machine.Status.DeepCopy()
	status.ObservedGeneration = machine.Generation
	if done.shard != "" {
		status.RequestID = string(machine.UID)
	}
	status.Shard = cmp.Or(done.shard, shardOf(machine))
	status.InstanceID = cmp.Or(done.id, instanceOf(machine))
	status.ProviderID = toldProviderID(machine, done)
	if len(nodes) == 1 {
		status.Addresses = addressesOf(nodes[0])
	}
	if done.instance != nil && runs(done.instance) {
		status.Initialization.Provisioned = ptr.To(true)
	}
	set := func(kind string, value metav1.ConditionStatus, reason, message string) {
		controller.SetCondition(&status.Conditions, machine.Generation, kind, value, reason, message)
	}

	if status.InstanceID != "" {
		set(v1beta1.ConditionInstanceCreated, metav1.ConditionTrue, v1beta1.ReasonInstanceCreated, "")
	} else {
		missing := orderable(status, done)
		set(v1beta1.ConditionInstanceCreated, metav1.ConditionFalse, missing.reason, missing.message)
	}
	if message, gone := serverEnd(seen, done); gone && !serverDeleted(machine) && machine.DeletionTimestamp.IsZero() && seen.paused == "" {
		set(v1beta1.ConditionServerDeleted, metav1.ConditionTrue, v1beta1.ReasonServerDeleted, message)
	}
	switch {
	case seen.drain.blocked:
		set(v1beta1.ConditionDrainsProgressing, metav1.ConditionFalse, v1beta1.ReasonDrainBlocked, seen.drain.message)
	case seen.drain.running:
		set(v1beta1.ConditionDrainsProgressing, metav1.ConditionTrue, v1beta1.ReasonDraining, seen.drain.message)
	case meta.FindStatusCondition(status.Conditions, v1beta1.ConditionDrainsProgressing) != nil:
		set(v1beta1.ConditionDrainsProgressing, metav1.ConditionTrue, v1beta1.ReasonNoDrains, "")
	}
	if seen.paused == "" {
		set(v1beta1.ConditionPaused, metav1.ConditionFalse, v1beta1.ReasonNotPaused, "")
	} else {
		set(v1beta1.ConditionPaused, metav1.ConditionTrue, v1beta1.ReasonPaused, seen.paused)
	}
	if ready, news := readiness(status, seen, done); news {
		status.Ready = ptr.To(ready.Status == metav1.ConditionTrue)
		set(v1beta1.ConditionReady, ready.Status, ready.Reason, ready.Message)
	}
	return status
}

// orderable is why there is no instance yet.
func orderable(status v1beta1.NstanceMachineStatus, done outcome) trouble {
	if done.trouble != nil {
		return *done.trouble
	}
	return trouble{v1beta1.ReasonProvisioning, fmt.Sprintf("an instance is being ordered from shard %q", status.Shard)}
}

// serverEnd tells whether the shard has said that the instance is gone, and how it
// puts it. A shard that says nothing has not.
func serverEnd(seen observation, done outcome) (message string, gone bool) {
	switch {
	case seen.notice != nil && seen.notice.State == shard.Deleted:
		return cmp.Or(seen.notice.Reason, "the shard has ended the instance"), true
	case done.lost:
		return "the shard no longer knows the instance", true
	case done.instance != nil && done.instance.State == shard.InstanceTerminated:
		return "the shard has ended the instance", true
	}
	return "", false
}

// readiness is the condition Ready; there is none when nothing new is known.
func readiness(status v1beta1.NstanceMachineStatus, seen observation, done outcome) (ready metav1.Condition, news bool) {
	not := func(reason, format string, args ...any) (metav1.Condition, bool) {
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: fmt.Sprintf(format, args...)}, true
	}
	ended := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionServerDeleted)
	created := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionInstanceCreated)
	switch {
	case !seen.machine.DeletionTimestamp.IsZero() && done.trouble != nil:
		return not(v1beta1.ReasonDeleting, "the shard has not confirmed that the instance is gone: %s", done.trouble.message)
	case !seen.machine.DeletionTimestamp.IsZero():
		return not(v1beta1.ReasonDeleting, "the shard is ending the instance")
	case ended != nil && ended.Status == metav1.ConditionTrue:
		return not(v1beta1.ReasonServerDeleted, "%s", ended.Message)
	case created.Status != metav1.ConditionTrue:
		return not(created.Reason, "%s", created.Message)
	case seen.paused != "":
		return metav1.Condition{}, false
	case seen.notice != nil && seen.notice.State == shard.Deleting:
		return not(v1beta1.ReasonServerDeleted, "the shard is ending the instance: %s", seen.notice.Reason)
	case done.instance != nil:
		return standing(done.instance), true
	case done.trouble != nil:
		return not(done.trouble.reason, "%s", done.trouble.message)
	case done.id != "":
		return not(v1beta1.ReasonProvisioning, "instance %s is ordered", status.InstanceID)
	}
	return metav1.Condition{}, false
}

// standing is the condition Ready as far as the instance is concerned.
func standing(instance *shard.Instance) metav1.Condition {
	not := func(reason, format string, args ...any) metav1.Condition {
		return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	switch {
	case runs(instance):
		return metav1.Condition{Status: metav1.ConditionTrue, Reason: v1beta1.ReasonReady}
	case instance.State == shard.InstanceRunning:
		return not(v1beta1.ReasonProvisioning, "instance %s has no provider id", instance.ID)
	default:
		return not(idle(instance.State), "instance %s is %s", instance.ID, instance.State)
	}
}

// idle is the reason why an instance in a state does not run.
func idle(state shard.InstanceState) string {
	switch state {
	case shard.InstanceStopped, shard.InstanceFailed:
		return v1beta1.ReasonInstanceFailed
	case shard.InstanceTerminating, shard.InstanceTerminated:
		return v1beta1.ReasonServerDeleted
	default:
		return v1beta1.ReasonProvisioning
	}
}

// runs tells whether an instance can be used. Without a provider id nobody finds
// its Node.
func runs(instance *shard.Instance) bool {
	return instance.State == shard.InstanceRunning && instance.ProviderID != ""
}
