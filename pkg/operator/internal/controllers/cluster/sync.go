// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// nstanceClusterKind is the kind of both the infrastructure and the control plane of the
// Cluster.
const nstanceClusterKind = "NstanceCluster"

// observation has the cached objects of the cluster. A field is nil if the object does not
// exist.
type observation struct {
	cluster        *clusterv1.Cluster
	nstanceCluster *v1beta1.NstanceCluster
	secret         *corev1.Secret
}

// sync creates the objects that do not exist and reverts changes. The kubeconfig is
// written first, because Cluster API connects as soon as the endpoint is published.
// It is also kept valid while the cluster is paused, because a credential is not a
// spec, and while the Cluster is being deleted, because Cluster API needs it for the
// deletion.
//
// Cluster API completes the deletion of a Cluster when the NstanceCluster is deleted,
// so neither is created again before both are deleted.
func (c *Controller) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	if key != c.key() {
		return 0, nil
	}
	if !c.writes.CaughtUp(key) || !c.secretWrites.CaughtUp(c.secretKey()) {
		return max(c.writes.Delay(key), c.secretWrites.Delay(c.secretKey())), nil
	}
	observed, err := c.observe()
	if err != nil {
		return 0, err
	}

	var refresh time.Duration
	var found findings
	var kubeconfigErr error
	if c.options.Kubeconfig == nil {
		found.secretProblem = secretProblem(observed.secret, c.namespace, c.name)
	} else if refresh, kubeconfigErr = c.ensureKubeconfig(ctx, observed.secret); kubeconfigErr != nil {
		found.writeError = kubeconfigErr.Error()
	}
	if observed.isBeingDeleted() {
		return refresh, kubeconfigErr
	}

	found.identity, found.shards = c.options.Identity.State(), c.shards.Shards()
	if c.options.Workload != nil {
		found.external, found.workload = true, c.options.Workload.State()
	}
	nstanceCluster := observed.nstanceCluster
	found.pausedBy = observed.pausedBy()
	if found.pausedBy == "" {
		if nstanceCluster, err = c.ensureSpec(ctx, nstanceCluster, kubeconfigErr == nil); err != nil {
			return 0, errors.Join(kubeconfigErr, err)
		}
	}
	if err := c.ensureStatus(ctx, nstanceCluster, found); err != nil || kubeconfigErr != nil {
		return 0, errors.Join(kubeconfigErr, err)
	}
	if observed.cluster == nil && found.pausedBy == "" {
		return refresh, c.createCluster(ctx)
	}
	return refresh, nil
}

func (c *Controller) observe() (observed observation, err error) {
	if observed.cluster, err = controller.GetCached(c.clusterLister.Get, "Cluster", c.key()); err != nil {
		return observation{}, err
	}
	if observed.nstanceCluster, err = controller.GetCached(c.nstanceClusterLister.Get, nstanceClusterKind, c.key()); err != nil {
		return observation{}, err
	}
	if observed.secret, err = controller.GetCached(c.secretLister.Get, "Secret", c.secretKey()); err != nil {
		return observation{}, err
	}
	return observed, nil
}

func (o observation) isBeingDeleted() bool {
	return o.cluster != nil && !o.cluster.DeletionTimestamp.IsZero() ||
		o.nstanceCluster != nil && !o.nstanceCluster.DeletionTimestamp.IsZero()
}

// pausedBy names the object that pauses the cluster, "" if it is not paused.
func (o observation) pausedBy() string {
	if o.nstanceCluster == nil {
		return controllers.PausedBy(o.cluster)
	}
	return controllers.PausedBy(o.cluster, o.nstanceCluster)
}

// ensureSpec creates the NstanceCluster, and reverts changes of its endpoint. The
// endpoint of a new NstanceCluster is set only if publish is true; without an endpoint
// it exists only to report the problem.
func (c *Controller) ensureSpec(ctx context.Context, nstanceCluster *v1beta1.NstanceCluster, publish bool) (*v1beta1.NstanceCluster, error) {
	endpoint := c.options.Endpoint
	spec := applyv1beta1.NstanceClusterSpec()
	switch {
	case publish && (nstanceCluster == nil || nstanceCluster.Spec.ControlPlaneEndpoint != endpoint):
		spec.WithControlPlaneEndpoint(applyv1beta1.APIEndpoint().WithHost(endpoint.Host).WithPort(endpoint.Port))
	case nstanceCluster == nil:
	default:
		return nstanceCluster, nil
	}
	written, err := c.nstanceClusters.Apply(ctx, applyv1beta1.NstanceCluster(c.name, c.namespace).WithSpec(spec), controllers.Apply)
	if err != nil {
		return nil, fmt.Errorf("apply NstanceCluster %s/%s: %w", c.namespace, c.name, err)
	}
	c.writes.Record(written)
	return written, nil
}

// ensureStatus writes the status of the NstanceCluster, which may not exist while the
// cluster is paused.
func (c *Controller) ensureStatus(ctx context.Context, nstanceCluster *v1beta1.NstanceCluster, found findings) error {
	if nstanceCluster == nil {
		return nil
	}
	status := newStatus(nstanceCluster, found)
	if equality.Semantic.DeepEqual(status, nstanceCluster.Status) {
		return nil
	}
	written, err := c.nstanceClusters.ApplyStatus(ctx, applyStatus(nstanceCluster, status), controllers.Apply)
	if err != nil {
		return fmt.Errorf("write the status of NstanceCluster %s: %w", klog.KObj(nstanceCluster), err)
	}
	c.writes.Record(written)
	c.recordIdentity(nstanceCluster, status)
	return nil
}

// createCluster creates the Cluster. Its spec belongs to the user afterwards.
func (c *Controller) createCluster(ctx context.Context) error {
	_, err := c.clusters.Create(ctx, newCluster(c.namespace, c.name), metav1.CreateOptions{FieldManager: controllers.FieldManager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create Cluster %s/%s: %w", c.namespace, c.name, err)
	}
	return nil
}

// newCluster returns a Cluster whose infrastructure and control plane are the NstanceCluster.
// Cluster API drains and deletes Nodes only if a Cluster has a control plane
// (docs/capi.md#control-plane).
func newCluster(namespace, name string) *clusterv1.Cluster {
	ref := clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: nstanceClusterKind, Name: name}
	return &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       clusterv1.ClusterSpec{InfrastructureRef: ref, ControlPlaneRef: ref},
	}
}

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

// findings are the results of a sync from which newStatus computes the status.
type findings struct {
	// secretProblem is why the Secret of the administrator is not usable. writeError is why
	// the operator could not write its own. At most one of them is set.
	secretProblem, writeError string
	// pausedBy is the result of observation.pausedBy.
	pausedBy string
	// identity is the state of the operator's certificate.
	identity metav1.Condition
	// external is set if the Nodes are in another cluster. workload is then the state of the
	// API server of that cluster.
	external bool
	workload metav1.Condition
	// shards are the shards that the configuration names, sorted.
	shards []string
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
	status.ObservedGeneration = nstanceCluster.Generation
	if len(found.shards) > 0 {
		// A missing configuration removes none.
		status.FailureDomains = nil
	}
	for _, shard := range found.shards[:min(len(found.shards), v1beta1.MaxFailureDomains)] {
		status.FailureDomains = append(status.FailureDomains, v1beta1.FailureDomain{Name: shard, ControlPlane: ptr.To(false)})
	}
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

// recordIdentity records an event when the operator has no usable certificate, and when its
// certificate is about to expire.
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
		WithStatus(controller.ApplyConfiguration[applyv1beta1.NstanceClusterStatusApplyConfiguration](status))
}
