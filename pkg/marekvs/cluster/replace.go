// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// setOnDelete sets the update strategy OnDelete if the StatefulSet still has the resource version. The
// API server accepts no rollingUpdate then, and server-side apply would leave the part of it that
// the API server has filled in.
func (c *Controller) setOnDelete(ctx context.Context, set *appsv1.StatefulSet) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": set.UID, "resourceVersion": set.ResourceVersion},
		"spec": map[string]any{"updateStrategy": map[string]any{
			"type": appsv1.OnDeleteStatefulSetStrategyType, "rollingUpdate": nil,
		}},
	})
	if err != nil {
		return fmt.Errorf("encode the update strategy of StatefulSet %s: %w", set.Name, err)
	}
	written, err := c.Kube.AppsV1().StatefulSets(set.Namespace).Patch(ctx, set.Name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: v1alpha1.ManagerName})
	if err != nil {
		return fmt.Errorf("set the update strategy of StatefulSet %s: %w", set.Name, err)
	}
	c.setWrites.Record(written)
	return nil
}

// replace deletes the Pods that the decision names. Before, the StatefulSet must have the update strategy
// OnDelete, so that its controller creates them from the present revision.
func (c *Controller) replace(ctx context.Context, set *appsv1.StatefulSet, result *syncResult) error {
	if !result.observed.OnDelete {
		return nil
	}
	var errs []error
	for _, ordinal := range result.decision.Rollout.Replace {
		name := fmt.Sprintf("%s-%d", set.Name, ordinal)
		deleted, err := c.deletePod(ctx, set, name, result.claims[ordinal])
		if err != nil {
			errs = append(errs, fmt.Errorf("delete Pod %s: %w", name, err))
		}
		if deleted {
			result.replaced = append(result.replaced, name)
		}
	}
	return errors.Join(errs...)
}

// deletingClaim reports whether a claim is being deleted, from the API server: when its Pod ends, so does its volume.
func (c *Controller) deletingClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) (bool, error) {
	if claim == nil {
		return false, nil
	}
	live, err := c.Kube.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read volume claim %s: %w", claim.Name, err)
	}
	return live.DeletionTimestamp != nil, nil
}

// deletePod deletes a Pod of a former revision that does not work. deleted is false if the Pod or its claim has
// changed since the decision.
func (c *Controller) deletePod(ctx context.Context, set *appsv1.StatefulSet, name string, claim *corev1.PersistentVolumeClaim) (deleted bool, err error) {
	if deleting, err := c.deletingClaim(ctx, claim); err != nil || deleting {
		return false, err
	}
	pods := c.Kube.CoreV1().Pods(set.Namespace)
	live, err := pods.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, err
	}
	seen := describe(live, 0)
	if !belongsTo(live, set) || seen.Terminating || seen.Ready || seen.Revision == set.Status.UpdateRevision {
		return false, nil
	}
	err = pods.Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
		UID: ptr.To(live.UID), ResourceVersion: ptr.To(live.ResourceVersion),
	}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return false, nil
	}
	return err == nil, err
}
