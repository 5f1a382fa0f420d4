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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/children"
	"nstance.dev/operator/pkg/marekvs/scale"
)

// state is what a removal depends on of a Pod.
type state struct{ ready, terminating bool }

// confirm makes sure that the StatefulSet and its Pods are what the cache has, and returns the
// present resource version. It returns errStale if they are not.
func (c *Controller) confirm(ctx context.Context, set *appsv1.StatefulSet) (version string, err error) {
	live, err := c.Kube.AppsV1().StatefulSets(set.Namespace).Get(ctx, set.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", errStale
	}
	if err != nil {
		return "", fmt.Errorf("read StatefulSet %s: %w", set.Name, err)
	}
	if live.UID != set.UID || live.Generation != set.Generation || live.Status.ObservedGeneration != live.Generation ||
		live.Status.Replicas != set.Status.Replicas || live.Status.UpdateRevision != set.Status.UpdateRevision {
		return "", errStale
	}
	pods, err := c.Kube.CoreV1().Pods(set.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(children.Selector(set.Name)).String(),
	})
	if err != nil {
		return "", fmt.Errorf("list the Pods of %s: %w", set.Name, err)
	}
	cached := map[types.UID]state{}
	for _, pod := range c.readPods(set) {
		cached[pod.UID] = stateOfPod(pod)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !metav1.IsControlledBy(pod, set) {
			continue
		}
		if known, ok := cached[pod.UID]; !ok || known != stateOfPod(pod) {
			return "", errStale
		}
		delete(cached, pod.UID)
	}
	if len(cached) > 0 {
		return "", errStale
	}
	return live.ResourceVersion, nil
}

func stateOfPod(pod *corev1.Pod) state {
	described := describe(pod, 0, time.Time{})
	return state{ready: described.Ready, terminating: described.Terminating}
}

// reclaim deletes the claims that the decision names, after it has read from the API server
// what it depends on. A claim that has changed meanwhile is not deleted.
func (c *Controller) reclaim(ctx context.Context, cluster *v1alpha1.MarekvsCluster, set *appsv1.StatefulSet, did *result) error {
	if len(did.decision.Reclaim) == 0 {
		return nil
	}
	if _, err := c.confirm(ctx, set); err != nil {
		return err
	}
	var errs []error
	for _, volume := range did.decision.Reclaim {
		deleted, err := c.deleteClaim(ctx, cluster, volume)
		if err != nil {
			errs = append(errs, &reclaimError{volume.Name, err})
			continue
		}
		if deleted {
			did.reclaimed = append(did.reclaimed, volume.Name)
		}
	}
	return errors.Join(errs...)
}

// reclaimError is the error of a claim that could not be deleted.
type reclaimError struct {
	claim string
	err   error
}

func (e *reclaimError) Error() string {
	return fmt.Sprintf("delete volume claim %s: %v", e.claim, e.err)
}

func (e *reclaimError) Unwrap() error { return e.err }

// deleteClaim deletes a claim, and reports whether it did: another client may have deleted it
// meanwhile.
func (c *Controller) deleteClaim(ctx context.Context, cluster *v1alpha1.MarekvsCluster, volume scale.Volume) (deleted bool, err error) {
	claims := c.Kube.CoreV1().PersistentVolumeClaims(cluster.Namespace)
	live, err := claims.Get(ctx, volume.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	}
	if len(volumesOf(cluster, []*corev1.PersistentVolumeClaim{live})) == 0 {
		return false, errStale
	}
	err = claims.Delete(ctx, volume.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
		UID: &live.UID, ResourceVersion: &live.ResourceVersion,
	}})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}
