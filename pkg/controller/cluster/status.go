// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
)

// Reasons of the condition KubeconfigAvailable.
const (
	// reasonKubeconfigAvailable: the Secret is what Cluster API looks for.
	reasonKubeconfigAvailable = "KubeconfigAvailable"
	// reasonKubeconfigMissing: the administrator has not made the Secret, or not
	// so that Cluster API finds it.
	reasonKubeconfigMissing = "KubeconfigMissing"
	// reasonKubeconfigNotWritten: the operator could not get a token or write the
	// Secret; the message holds the API server's words.
	reasonKubeconfigNotWritten = "KubeconfigNotWritten"
)

// observed is what a status is computed from.
type observed struct {
	// missing and notWritten tell what is wrong with the kubeconfig; at most one
	// of them is not empty.
	missing, notWritten string
	// pausedBy is what pauses the cluster.
	pausedBy string
}

// newStatus is the status that follows from what was observed. Provisioned,
// initialized and Ready are always true, as the document wants: there is nothing
// to provision, and the control plane is there, since the operator talks to it.
// A missing kubeconfig is another matter, with a condition of its own.
func newStatus(object *v1beta1.NstanceCluster, seen observed) v1beta1.NstanceClusterStatus {
	status := *object.Status.DeepCopy()
	status.Initialization = v1beta1.NstanceClusterInitialization{
		Provisioned:             ptr.To(true),
		ControlPlaneInitialized: ptr.To(true),
	}
	status.ExternalManagedControlPlane = ptr.To(true)
	set := func(condition string, value metav1.ConditionStatus, reason, message string) {
		controller.SetCondition(&status.Conditions, object.Generation, condition, value, reason, message)
	}
	set(v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonReady, "")
	set(v1beta1.ConditionAvailable, metav1.ConditionTrue, v1beta1.ReasonReady, "")
	switch {
	case seen.missing != "":
		set(v1beta1.ConditionKubeconfigAvailable, metav1.ConditionFalse, reasonKubeconfigMissing, seen.missing)
	case seen.notWritten != "":
		set(v1beta1.ConditionKubeconfigAvailable, metav1.ConditionFalse, reasonKubeconfigNotWritten, seen.notWritten)
	default:
		set(v1beta1.ConditionKubeconfigAvailable, metav1.ConditionTrue, reasonKubeconfigAvailable, "")
	}
	if seen.pausedBy != "" {
		set(v1beta1.ConditionPaused, metav1.ConditionTrue, v1beta1.ReasonPaused, seen.pausedBy)
	} else {
		set(v1beta1.ConditionPaused, metav1.ConditionFalse, v1beta1.ReasonNotPaused, "")
	}
	return status
}

func applyStatus(object *v1beta1.NstanceCluster, status v1beta1.NstanceClusterStatus) *applyv1beta1.NstanceClusterApplyConfiguration {
	return applyv1beta1.NstanceCluster(object.Name, object.Namespace).WithUID(object.UID).
		WithStatus(applyv1beta1.NstanceClusterStatus().
			WithInitialization(applyv1beta1.NstanceClusterInitialization().
				WithProvisioned(*status.Initialization.Provisioned).
				WithControlPlaneInitialized(*status.Initialization.ControlPlaneInitialized)).
			WithExternalManagedControlPlane(*status.ExternalManagedControlPlane).
			WithConditions(controller.ApplyConditions(status.Conditions)...))
}
