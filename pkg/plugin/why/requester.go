// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package why

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// requester adds who has requested an instance that belongs to no pool.
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
