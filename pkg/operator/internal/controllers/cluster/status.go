// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
)

// Reasons of the condition KubeconfigAvailable.
const (
	// reasonKubeconfigAvailable: Cluster API can use the Secret.
	reasonKubeconfigAvailable = "KubeconfigAvailable"
	// reasonKubeconfigMissing: the Secret of the administrator does not exist or is not
	// usable.
	reasonKubeconfigMissing = "KubeconfigMissing"
	// reasonKubeconfigNotWritten: the operator could not get a token or write the Secret;
	// the message is the error of the API server.
	reasonKubeconfigNotWritten = "KubeconfigNotWritten"
)

// findings are the results of a sync that the status reports.
type findings struct {
	// secretProblem is why the Secret of the administrator is not usable, writeError why
	// the operator could not write its own. At most one of them is not empty.
	secretProblem, writeError string
	// pausedBy is what pauses the cluster.
	pausedBy string
	// identity is the state of the operator's certificate.
	identity metav1.Condition
	// external is set if the Nodes are in another cluster, and workload is then the state
	// of its API server.
	external bool
	workload metav1.Condition
}

// newStatus returns the status for the findings. Provisioned, controlPlaneInitialized
// and Ready are always true: there is nothing to provision, and the control plane
// serves this operator. A missing kubeconfig has a condition of its own.
func newStatus(nstanceCluster *v1beta1.NstanceCluster, found findings) v1beta1.NstanceClusterStatus {
	status := *nstanceCluster.Status.DeepCopy()
	status.Initialization = v1beta1.NstanceClusterInitialization{
		Provisioned:             ptr.To(true),
		ControlPlaneInitialized: ptr.To(true),
	}
	status.ExternalManagedControlPlane = ptr.To(true)
	set := func(condition string, value metav1.ConditionStatus, reason, message string) {
		controller.SetCondition(&status.Conditions, nstanceCluster.Generation, condition, value, reason, message)
	}
	set(v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonReady, "")
	set(v1beta1.ConditionAvailable, metav1.ConditionTrue, v1beta1.ReasonReady, "")
	switch {
	case found.secretProblem != "":
		set(v1beta1.ConditionKubeconfigAvailable, metav1.ConditionFalse, reasonKubeconfigMissing, found.secretProblem)
	case found.writeError != "":
		set(v1beta1.ConditionKubeconfigAvailable, metav1.ConditionFalse, reasonKubeconfigNotWritten, found.writeError)
	default:
		set(v1beta1.ConditionKubeconfigAvailable, metav1.ConditionTrue, reasonKubeconfigAvailable, "")
	}
	// A new leader keeps the condition until its first sync of the certificate.
	if found.identity.Status != "" {
		set(v1beta1.ConditionIdentityReady, found.identity.Status, found.identity.Reason, found.identity.Message)
	}
	switch {
	case !found.external:
		meta.RemoveStatusCondition(&status.Conditions, v1beta1.ConditionWorkloadClusterReachable)
	case found.workload.Status != "":
		set(v1beta1.ConditionWorkloadClusterReachable, found.workload.Status, found.workload.Reason, found.workload.Message)
	}
	if found.pausedBy != "" {
		set(v1beta1.ConditionPaused, metav1.ConditionTrue, v1beta1.ReasonPaused, found.pausedBy)
	} else {
		set(v1beta1.ConditionPaused, metav1.ConditionFalse, v1beta1.ReasonNotPaused, "")
	}
	return status
}

// recordIdentity records an event when the operator has no usable certificate, and when
// the one that it has is about to expire.
func (c *Controller) recordIdentity(before *v1beta1.NstanceCluster, after v1beta1.NstanceClusterStatus) {
	was := meta.FindStatusCondition(before.Status.Conditions, v1beta1.ConditionIdentityReady)
	is := meta.FindStatusCondition(after.Conditions, v1beta1.ConditionIdentityReady)
	if is == nil || was != nil && was.Reason == is.Reason {
		return
	}
	if is.Status == metav1.ConditionFalse && is.Reason != v1beta1.ReasonNotRegistered || is.Reason == v1beta1.ReasonCertificateExpiring {
		controller.Warn(c.recorder, before, is.Reason, "Register", is.Message)
	}
}

func applyStatus(nstanceCluster *v1beta1.NstanceCluster, status v1beta1.NstanceClusterStatus) *applyv1beta1.NstanceClusterApplyConfiguration {
	return applyv1beta1.NstanceCluster(nstanceCluster.Name, nstanceCluster.Namespace).WithUID(nstanceCluster.UID).
		WithStatus(applyv1beta1.NstanceClusterStatus().
			WithInitialization(applyv1beta1.NstanceClusterInitialization().
				WithProvisioned(*status.Initialization.Provisioned).
				WithControlPlaneInitialized(*status.Initialization.ControlPlaneInitialized)).
			WithExternalManagedControlPlane(*status.ExternalManagedControlPlane).
			WithConditions(controller.ApplyConditions(status.Conditions)...))
}
