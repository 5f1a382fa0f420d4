// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package why

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/status"
)

// Reasons of a shard to delete an instance (docs/protocol.md#drains).
const (
	scaleDown   = "scale-down"
	configDrift = "config-drift"
)

var meanings = map[string]string{
	scaleDown:      "the group has more instances than its size",
	configDrift:    "the configuration of the group has changed, and the instance is replaced",
	"expired":      "the instance is too old, and is replaced",
	"rotated":      "the instance is from before spec.rotation.after of the pool, and is replaced",
	"replaced":     "its Node has the annotation nstance.dev/remediate-instance, and the instance is replaced",
	"unhealthy":    "the instance is unhealthy, and is replaced",
	"requested":    "its deletion was requested",
	"spot":         "the provider has announced that it will terminate the instance",
	"unregistered": "its provider never created it, or its agent has not registered",
	"returned":     "it was deleted, and its provider lists it again",
}

// reasonDrainTimedOut is the reason of the event of a drain that was not finished in time.
const reasonDrainTimedOut = "DrainTimedOut"

// drain adds why the Node is being drained.
func (e *explainer) drain() {
	drain := e.result.Drain
	if drain == nil {
		return
	}
	node := Source{Kind: "Node", Name: drain.Node}
	if slices.Contains(drain.By, status.ByShard) {
		reason := Reason{Type: DrainRequested, By: "shard " + drain.Shard, Source: node, At: drain.Since}
		meaning, known := meanings[drain.Reason]
		switch {
		case known:
			reason.Message = fmt.Sprintf("%s: %s", drain.Reason, meaning)
		case drain.Reason != "":
			reason.Message = drain.Reason
		default:
			reason.Message = "unknown: " + drain.ReasonUnknown
		}
		e.add(reason)
	}
	for _, event := range e.NodeEventsOf(e.subject.Node, reasonDrainTimedOut) {
		e.add(Reason{Type: DrainTimedOut, Message: event.Note, By: event.ReportingController, Source: node, At: objects.LastSeen(&event)})
		break
	}
}

// missingNode adds that the instance runs without a Node.
func (e *explainer) missingNode() {
	group, id := e.subject.ShardGroup, e.result.ProviderID
	if e.result.Verdict != Kept || group == nil || id == "" || e.Nodes.Unknown != "" || len(e.IndexNodes().WithProviderID(id)) > 0 {
		return
	}
	e.add(Reason{Type: NoNode, Message: "no Node has its provider id: its machine has not joined, or its Node was deleted",
		Source: Source{Kind: "NstanceShardGroup", Namespace: group.Namespace, Name: group.Name, Field: "status.providerIDs"}, By: operatorManager})
}

// reasonIs reports whether the shard drains the Node for a reason, or for an unknown reason.
func (e *explainer) reasonIs(reason string) bool {
	drain := e.result.Drain
	return drain != nil && slices.Contains(drain.By, status.ByShard) && (drain.Reason == reason || drain.Reason == "")
}

// noDeleter is why it is not known which user has deleted an object.
const noDeleter = "an object does not have who has deleted it; the audit log of the API server has"

// machine adds the reasons of the Machine and the NstanceMachine.
func (e *explainer) machine() {
	if machine := e.subject.Machine; machine != nil {
		source := Source{Kind: "Machine", Namespace: machine.Namespace, Name: machine.Name}
		e.candidate(machine, source)
		if !machine.DeletionTimestamp.IsZero() {
			e.add(Reason{Type: MachineDeleted, Message: "the Machine is being deleted" + drainTimeout(machine),
				Source: source, ByUnknown: noDeleter, At: machine.DeletionTimestamp.Time})
		}
		if unhealthy := meta.FindStatusCondition(machine.Status.Conditions, clusterv1.MachineHealthCheckSucceededCondition); unhealthy != nil &&
			unhealthy.Status == metav1.ConditionFalse {
			e.add(Reason{Type: HealthCheck, Message: fmt.Sprintf("a MachineHealthCheck reports it as unhealthy: %s", unhealthy.Message),
				Source: source, By: "MachineHealthCheck", At: unhealthy.LastTransitionTime.Time})
		}
	}
	nstanceMachine := e.subject.NstanceMachine
	if nstanceMachine == nil {
		return
	}
	source := Source{Kind: v1beta1.MachineKind, Namespace: nstanceMachine.Namespace, Name: nstanceMachine.Name}
	if !nstanceMachine.DeletionTimestamp.IsZero() {
		e.add(Reason{Type: MachineDeleted, Message: "the NstanceMachine is being deleted", Source: source,
			ByUnknown: noDeleter, At: nstanceMachine.DeletionTimestamp.Time})
	}
	e.conditions(nstanceMachine, source)
}

// candidate adds that the Machine was selected for deletion.
func (e *explainer) candidate(machine *clusterv1.Machine, source Source) {
	if _, selected := machine.Annotations[clusterv1.DeleteMachineAnnotation]; !selected {
		return
	}
	source.Field = "metadata.annotations[" + clusterv1.DeleteMachineAnnotation + "]"
	reason := Reason{Type: DeletionCandidate, Source: source,
		Message: "it is a deletion candidate: it is removed before other instances when the replicas are lowered"}
	reason.setWriter(machine, "f:metadata", "f:annotations", "f:"+clusterv1.DeleteMachineAnnotation)
	e.add(reason)
}

// drainTimeout returns the limit of the drain by Cluster API.
func drainTimeout(machine *clusterv1.Machine) string {
	timeout := machine.Spec.Deletion.NodeDrainTimeoutSeconds
	if timeout == nil || *timeout == 0 {
		return ", and its drain has no limit"
	}
	return fmt.Sprintf(", and its drain takes at most %s", time.Duration(*timeout)*time.Second)
}

// conditions adds the conditions of an NstanceMachine that report a problem.
func (e *explainer) conditions(machine *v1beta1.NstanceMachine, source Source) {
	for _, condition := range machine.Status.Conditions {
		bad := metav1.ConditionFalse
		if condition.Type == v1beta1.ConditionServerDeleted || condition.Type == v1beta1.ConditionPaused {
			bad = metav1.ConditionTrue
		}
		if condition.Status != bad || condition.Type == v1beta1.ConditionDrainsProgressing {
			continue
		}
		source.Field = "condition " + condition.Type
		e.add(Reason{Type: Condition, Message: condition.Reason + ": " + condition.Message, Source: source,
			By: operatorManager, At: condition.LastTransitionTime.Time})
	}
}

// operatorManager is the field manager of the operator.
const operatorManager = "nstance-operator"

// setWriter sets the last writer of a field.
func (r *Reason) setWriter(object metav1.Object, path ...string) {
	writer, found := objects.WriterOf(object, path...)
	if !found {
		r.ByUnknown = "the managed fields have no writer of it: it is a default, or was written through a subresource"
		return
	}
	r.By, r.At = writer.Manager, writer.At
}

// requester adds the Pod or owner that has requested an instance of no pool.
func (e *explainer) requester() {
	machine := e.subject.NstanceMachine
	if machine == nil || e.subject.Pool != nil {
		return
	}
	name, ok := e.subject.RequestedBy()
	if !ok {
		e.owner(machine)
		return
	}
	reason := Reason{Type: Pod, By: "Pod " + name.String(), At: machine.CreationTimestamp.Time,
		Source: Source{Kind: "Pod", Namespace: name.Namespace, Name: name.Name, Field: "metadata.annotations[" + v1beta1.AnnotationOnDemandGroup + "]"}}
	read := e.Requesting[name]
	switch uid := machine.Labels[v1beta1.LabelPodUID]; {
	case read.Unknown != "":
		reason.Message = "the Pod has requested it; whether the Pod exists is unknown: " + read.Unknown
	case len(read.Items) == 0 || string(read.Items[0].UID) != uid:
		reason.Message = "the Pod that has requested it was deleted, so its Machine is deleted"
	case read.Items[0].Status.Phase == corev1.PodSucceeded || read.Items[0].Status.Phase == corev1.PodFailed:
		reason.Message = fmt.Sprintf("the Pod that has requested it has finished (%s), so its Machine is deleted", read.Items[0].Status.Phase)
	default:
		reason.Message = "the Pod has requested it, and exists"
		if node := read.Items[0].Spec.NodeName; node != "" {
			reason.Message += ", on Node " + node
		}
	}
	e.add(reason)
}

// owner adds the owner of the Machine of an instance.
func (e *explainer) owner(machine *v1beta1.NstanceMachine) {
	reason := Reason{Type: Owner, At: machine.CreationTimestamp.Time,
		Source: Source{Kind: v1beta1.MachineKind, Namespace: machine.Namespace, Name: machine.Name}}
	var owner *metav1.OwnerReference
	if e.subject.Machine != nil {
		reason.Source = Source{Kind: "Machine", Namespace: e.subject.Machine.Namespace, Name: e.subject.Machine.Name}
		owner = metav1.GetControllerOfNoCopy(e.subject.Machine)
	}
	switch {
	case owner != nil:
		reason.Message = fmt.Sprintf("%s %s wants its Machine", owner.Kind, owner.Name)
		reason.By = owner.Kind + " " + owner.Name
	case e.subject.Machine != nil:
		reason.Message = "a single Machine wants it"
		reason.setWriter(e.subject.Machine, "f:spec", "f:infrastructureRef")
	case e.Machines.Unknown != "":
		reason.Message, reason.ByUnknown = "unknown: "+e.Machines.Unknown, e.Machines.Unknown
	default:
		reason.Message, reason.ByUnknown = "it has no Machine", "the NstanceMachine has no owner"
	}
	e.add(reason)
}
