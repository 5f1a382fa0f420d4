// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package why

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
)

// noDeleter is why it is not known who has deleted an object.
const noDeleter = "an object does not have who has deleted it; the audit log of the API server has"

// machine adds what Machine and NstanceMachine say.
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

// conditions adds the conditions of an NstanceMachine that say why it is not as it should be.
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

// setWriter sets who has written a field.
func (r *Reason) setWriter(object metav1.Object, path ...string) {
	writer, found := objects.WriterOf(object, path...)
	if !found {
		r.ByUnknown = "the managed fields have no writer of it: it is a default, or was written through a subresource"
		return
	}
	r.By, r.At = writer.Manager, writer.At
}
