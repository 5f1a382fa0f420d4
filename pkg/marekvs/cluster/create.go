// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/children"
	"nstance.dev/operator/pkg/marekvs/scale"
)

// create creates the StatefulSet. Its initial size depends on existing volumes, which are
// read from the API server. services is the error of the Services, without which no new cluster starts.
func (c *Controller) create(ctx context.Context, m *memory, cluster *v1alpha1.MarekvsCluster, result *syncResult, services error) error {
	orphans, err := c.orphans(ctx, cluster)
	if err != nil {
		return errors.Join(services, err)
	}
	size := children.Size{Annotations: stabilizationAnnotation(cluster)}
	gossip := children.GossipCluster(cluster)
	if len(orphans) > 0 {
		gossip = children.GossipClusterOf(&orphans[0].Spec)
	}
	switch {
	case len(orphans) > 0 && cluster.Status.Replicas > 0:
		result.adopting, result.replicas = true, sizeFor(cluster, orphans)
		setStamp(size.Annotations, v1alpha1.AnnotationLastScaleUp, cluster.Status.LastScaleUpTime)
		setStamp(size.Annotations, v1alpha1.AnnotationLastScaleDown, cluster.Status.LastScaleDownTime)
	case services != nil:
		return services
	default:
		if result.replicas, result.decision.Target, err = c.initialSize(ctx, cluster); err != nil {
			return err
		}
	}
	// No Pod that exists is updated by the creation.
	size.Replicas, size.Partition = result.replicas, result.replicas
	if err := c.ensureStatefulSet(ctx, m, cluster, gossip, size, ""); err != nil {
		return errors.Join(services, err)
	}
	result.created = true
	return services
}

// initialSize returns the size of a new StatefulSet, and the size that it is to have.
func (c *Controller) initialSize(ctx context.Context, cluster *v1alpha1.MarekvsCluster) (replicas, target int32, err error) {
	list, err := c.Kube.CoreV1().PersistentVolumeClaims(cluster.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(children.Labels(cluster.Name)).String(),
	})
	if err != nil {
		return 0, 0, fmt.Errorf("list the volume claims of %s: %w", cluster.Name, err)
	}
	claims := make([]*corev1.PersistentVolumeClaim, len(list.Items))
	for i := range list.Items {
		claims[i] = &list.Items[i]
	}
	replicas, target = scale.Create(wantedOf(cluster), volumesOf(cluster, claims))
	return replicas, target, nil
}

// gossipClusterOf returns the gossip cluster of a StatefulSet. StatefulSets of earlier versions of
// the operator have no annotation, and keep what their template has.
func gossipClusterOf(set *appsv1.StatefulSet) string {
	if gossip, ok := set.Annotations[v1alpha1.AnnotationGossipCluster]; ok {
		return gossip
	}
	return children.GossipClusterOf(&set.Spec.Template.Spec)
}

// orphans returns the Pods of a StatefulSet that was deleted without them, from the API server. A new
// StatefulSet adopts them.
func (c *Controller) orphans(ctx context.Context, cluster *v1alpha1.MarekvsCluster) ([]corev1.Pod, error) {
	pods, err := c.Kube.CoreV1().Pods(cluster.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(children.Labels(cluster.Name)).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list the Pods of %s: %w", cluster.Name, err)
	}
	var orphans []corev1.Pod
	for i := range pods.Items {
		pod := &pods.Items[i]
		if _, ok := podOrdinal(cluster.Name, pod.Name); ok && pod.Labels[appsv1.StatefulSetPodNameLabel] == pod.Name &&
			pod.DeletionTimestamp == nil && metav1.GetControllerOfNoCopy(pod) == nil {
			orphans = append(orphans, *pod)
		}
	}
	return orphans, nil
}

// sizeFor returns the size of a StatefulSet for Pods that an earlier StatefulSet has left. The status has its
// size, and volume claims above it are of nodes that were removed before.
func sizeFor(cluster *v1alpha1.MarekvsCluster, orphans []corev1.Pod) int32 {
	size := cluster.Status.Replicas
	for i := range orphans {
		ordinal, _ := podOrdinal(cluster.Name, orphans[i].Name)
		size = max(size, ordinal+1)
	}
	return min(size, scale.MaxNodes)
}

func setStamp(annotations map[string]string, name string, at *metav1.Time) {
	if at != nil {
		annotations[name] = at.UTC().Format(time.RFC3339)
	}
}
