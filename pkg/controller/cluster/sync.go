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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
)

// staleRetry is how long a sync waits for a cache to show its last write.
const staleRetry = 50 * time.Millisecond

// kind is the kind of the cluster's infrastructure and control plane.
const kind = "NstanceCluster"

// sync makes what is missing. The kubeconfig comes first: as soon as the
// endpoint is published, CAPI wants to connect. It is kept also while the
// cluster is paused, since a credential is no spec, and while the Cluster is
// being deleted, since CAPI deletes with it.
//
// CAPI ends the deletion of a Cluster when the NstanceCluster is gone; both are
// made anew only when the Cluster is gone too.
func (c *Controller) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	if key != cache.NewObjectName(c.config.Namespace, c.config.Name) {
		return 0, nil
	}
	if !c.writes.Seen(key) || !c.secretWrites.Seen(c.secretKey()) {
		return staleRetry, nil
	}
	cluster, object, secret, err := c.gather()
	if err != nil {
		return 0, err
	}

	var refresh time.Duration
	var seen observed
	var kubeconfigErr error
	if c.config.Kubeconfig == nil {
		seen.missing = hindrance(secret, c.config.Namespace, c.config.Name)
	} else if refresh, kubeconfigErr = c.ensureKubeconfig(ctx, secret); kubeconfigErr != nil {
		seen.notWritten = kubeconfigErr.Error()
	}
	if cluster != nil && !cluster.DeletionTimestamp.IsZero() || object != nil && !object.DeletionTimestamp.IsZero() {
		return refresh, kubeconfigErr
	}

	seen.pausedBy = pausedBy(cluster, object)
	if seen.pausedBy == "" {
		if object, err = c.ensureSpec(ctx, object, kubeconfigErr == nil); err != nil {
			return 0, errors.Join(kubeconfigErr, err)
		}
	}
	if err := c.ensureStatus(ctx, object, seen); err != nil || kubeconfigErr != nil {
		return 0, errors.Join(kubeconfigErr, err)
	}
	if cluster == nil && seen.pausedBy == "" {
		return refresh, c.createCluster(ctx)
	}
	return refresh, nil
}

// gather reads the three objects from the caches. What is not there is nil.
func (c *Controller) gather() (cluster *clusterv1.Cluster, object *v1beta1.NstanceCluster, secret *corev1.Secret, err error) {
	cluster, err = c.clusterLister.Get(c.config.Name)
	if apierrors.IsNotFound(err) {
		cluster = nil
	} else if err != nil {
		return nil, nil, nil, fmt.Errorf("read Cluster %s from the cache: %w", c.config.Name, err)
	}
	object, err = c.lister.Get(c.config.Name)
	if apierrors.IsNotFound(err) {
		object = nil
	} else if err != nil {
		return nil, nil, nil, fmt.Errorf("read NstanceCluster %s from the cache: %w", c.config.Name, err)
	}
	secret, err = c.secretLister.Get(SecretName(c.config.Name))
	if apierrors.IsNotFound(err) {
		secret = nil
	} else if err != nil {
		return nil, nil, nil, fmt.Errorf("read Secret %s from the cache: %w", SecretName(c.config.Name), err)
	}
	return cluster, object, secret, nil
}

func pausedBy(cluster *clusterv1.Cluster, object *v1beta1.NstanceCluster) string {
	if object == nil {
		return controller.PausedBy(cluster)
	}
	return controller.PausedBy(cluster, object)
}

// ensureSpec makes the NstanceCluster and sees to its endpoint. One that is new
// gets an endpoint only when it may be published; without one it is still there
// to say what is missing.
func (c *Controller) ensureSpec(ctx context.Context, object *v1beta1.NstanceCluster, publish bool) (*v1beta1.NstanceCluster, error) {
	spec := applyv1beta1.NstanceClusterSpec()
	switch {
	case publish && (object == nil || object.Spec.ControlPlaneEndpoint != c.config.Endpoint):
		spec.WithControlPlaneEndpoint(applyv1beta1.APIEndpoint().WithHost(c.config.Endpoint.Host).WithPort(c.config.Endpoint.Port))
	case object == nil:
	default:
		return object, nil
	}
	written, err := c.nstanceClusters.Apply(ctx,
		applyv1beta1.NstanceCluster(c.config.Name, c.config.Namespace).WithSpec(spec), controller.Apply)
	if err != nil {
		return nil, fmt.Errorf("apply NstanceCluster %s/%s: %w", c.config.Namespace, c.config.Name, err)
	}
	c.writes.Wrote(written)
	return written, nil
}

// ensureStatus writes the status of the NstanceCluster, which may be missing
// while the cluster is paused.
func (c *Controller) ensureStatus(ctx context.Context, object *v1beta1.NstanceCluster, seen observed) error {
	if object == nil {
		return nil
	}
	status := newStatus(object, seen)
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
