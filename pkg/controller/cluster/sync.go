// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
)

// staleRetry is how long a sync waits for the cache to show its last write.
const staleRetry = 50 * time.Millisecond

// kind is the kind of the cluster's infrastructure and control plane.
const kind = "NstanceCluster"

// sync makes what is missing. The kubeconfig comes first: as soon as the
// endpoint is published, CAPI wants to connect. While the Cluster is being
// deleted CAPI still needs the kubeconfig, and waits for the NstanceCluster to be
// gone; both are made anew when the Cluster is gone too.
func (c *Controller) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	if key != cache.NewObjectName(c.config.Namespace, c.config.Name) {
		return 0, nil
	}
	if !c.writes.Seen(key) {
		return staleRetry, nil
	}
	refresh, err := c.ensureKubeconfig(ctx)
	if err != nil {
		return 0, err
	}
	cluster, err := c.clusterLister.Get(c.config.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("read Cluster %s from the cache: %w", key, err)
	}
	if err == nil && !cluster.DeletionTimestamp.IsZero() {
		return refresh, nil
	}
	exists := err == nil
	if err := c.ensureNstanceCluster(ctx); err != nil {
		return 0, err
	}
	if exists {
		return refresh, nil
	}
	return refresh, c.createCluster(ctx)
}

func (c *Controller) ensureNstanceCluster(ctx context.Context) error {
	object, err := c.lister.Get(c.config.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read NstanceCluster %s from the cache: %w", c.config.Name, err)
	}
	if err == nil && !object.DeletionTimestamp.IsZero() {
		return nil
	}
	if err != nil || object.Spec.ControlPlaneEndpoint != c.config.Endpoint {
		endpoint := applyv1beta1.APIEndpoint().WithHost(c.config.Endpoint.Host).WithPort(c.config.Endpoint.Port)
		object, err = c.nstanceClusters.Apply(ctx,
			applyv1beta1.NstanceCluster(c.config.Name, c.config.Namespace).
				WithSpec(applyv1beta1.NstanceClusterSpec().WithControlPlaneEndpoint(endpoint)),
			controller.Apply)
		if err != nil {
			return fmt.Errorf("apply NstanceCluster %s/%s: %w", c.config.Namespace, c.config.Name, err)
		}
		c.writes.Wrote(object)
	}

	status := newStatus(object)
	if equality.Semantic.DeepEqual(status, object.Status) {
		return nil
	}
	written, err := c.nstanceClusters.ApplyStatus(ctx, applyStatus(object, status), controller.Apply)
	if err != nil {
		return fmt.Errorf("write the status of NstanceCluster %s: %w", klog.KObj(object), err)
	}
	c.writes.Wrote(written)
	return nil
}

// newStatus is always the same: there is nothing to provision, and the control
// plane is there, since the operator talks to it.
func newStatus(object *v1beta1.NstanceCluster) v1beta1.NstanceClusterStatus {
	status := *object.Status.DeepCopy()
	status.Initialization = v1beta1.NstanceClusterInitialization{
		Provisioned:             ptr.To(true),
		ControlPlaneInitialized: ptr.To(true),
	}
	status.ExternalManagedControlPlane = ptr.To(true)
	for _, condition := range []string{v1beta1.ConditionReady, v1beta1.ConditionAvailable} {
		controller.SetCondition(&status.Conditions, object.Generation, condition, metav1.ConditionTrue, v1beta1.ReasonReady, "")
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

// createCluster makes the Cluster. Its spec is then its users': they pause it,
// for one.
func (c *Controller) createCluster(ctx context.Context) error {
	_, err := c.clusters.Create(ctx, newCluster(c.config.Namespace, c.config.Name), metav1.CreateOptions{FieldManager: controller.FieldManager})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create Cluster %s/%s: %w", c.config.Namespace, c.config.Name, err)
	}
	return nil
}

// newCluster names the NstanceCluster as infrastructure and as control plane.
// CAPI drains and deletes Nodes only in a cluster whose control plane it knows.
func newCluster(namespace, name string) *clusterv1.Cluster {
	ref := clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: kind, Name: name}
	return &clusterv1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       clusterv1.ClusterSpec{InfrastructureRef: ref, ControlPlaneRef: ref},
	}
}
