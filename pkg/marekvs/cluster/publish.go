// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/controller"
	marekvsac "nstance.dev/operator/pkg/generated/applyconfiguration/marekvs/v1alpha1"
)

// publish writes the status if it changed, and records what happened as events.
func (c *Controller) publish(ctx context.Context, cluster *v1alpha1.MarekvsCluster, did *result, failure error) error {
	status := newStatus(cluster, did, failure)
	if !equality.Semantic.DeepEqual(status, cluster.Status) {
		written, err := c.Marekvs.MarekvsClusters(cluster.Namespace).ApplyStatus(ctx,
			marekvsac.MarekvsCluster(cluster.Name, cluster.Namespace).WithUID(cluster.UID).WithStatus(applyStatus(&status)), apply)
		if apierrors.IsNotFound(err) {
			return nil // deleted meanwhile
		}
		if err != nil {
			return fmt.Errorf("apply the status of MarekvsCluster %s: %w", cluster.Name, err)
		}
		c.clusterWrites.Record(written)
	}
	c.record(cluster, &status, did)
	return nil
}

func applyStatus(status *v1alpha1.MarekvsClusterStatus) *marekvsac.MarekvsClusterStatusApplyConfiguration {
	applied := marekvsac.MarekvsClusterStatus().
		WithObservedGeneration(status.ObservedGeneration).
		WithPhase(status.Phase).
		WithMessage(status.Message).
		WithReplicas(status.Replicas).
		WithSelector(status.Selector).
		WithConditions(controller.ApplyConditions(status.Conditions)...)
	if status.OpsPerSecond != "" {
		applied.WithOpsPerSecond(status.OpsPerSecond)
	}
	// A value without a signal is left out, which removes it.
	applied.DesiredNodes, applied.ReadyNodes = status.DesiredNodes, status.ReadyNodes
	applied.UnderreplicatedPartitions = status.UnderreplicatedPartitions
	applied.LastScaleUpTime, applied.LastScaleDownTime = status.LastScaleUpTime, status.LastScaleDownTime
	return applied
}

// record records each transition once. Events of one reason differ by the object that they are
// related to.
func (c *Controller) record(cluster *v1alpha1.MarekvsCluster, status *v1alpha1.MarekvsClusterStatus, did *result) {
	normal := func(related runtime.Object, reason, action, format string, args ...any) {
		c.Recorder.Eventf(cluster, related, corev1.EventTypeNormal, reason, action, format, args...)
	}
	if o := did.observed; o != nil && did.replicas > 0 && did.replicas != o.Replicas {
		if did.replicas > o.Replicas {
			normal(podRef(cluster, did.replicas-1), v1alpha1.ReasonScaledUp, "Scale", "Scaled from %d to %d nodes", o.Replicas, did.replicas)
		} else {
			normal(podRef(cluster, did.replicas), v1alpha1.ReasonScaledDown, "Scale", "Scaled from %d to %d nodes", o.Replicas, did.replicas)
		}
	}
	for _, name := range did.reclaimed {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: name}}
		normal(claim, v1alpha1.ReasonVolumeReclaimed, "Reclaim", "Deleted volume claim %s of a removed node", name)
	}
	before := cluster.Status.Conditions
	for _, kind := range []string{v1alpha1.ConditionOwned, v1alpha1.ConditionReconciled} {
		if turned := controller.TurnedFalse(before, status.Conditions, kind); turned != nil {
			controller.Warn(c.Recorder, cluster, turned.Reason, "Apply", turned.Message)
			break
		}
	}
	if rolled := controller.TurnedFalse(before, status.Conditions, v1alpha1.ConditionRolledOut); rolled != nil && rolled.Reason == v1alpha1.ReasonRolloutHalted {
		controller.Warn(c.Recorder, cluster, rolled.Reason, "RollOut", rolled.Message)
	}
	was := meta.IsStatusConditionTrue(before, v1alpha1.ConditionScaleDownBlocked)
	now := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionScaleDownBlocked)
	switch {
	case now != nil && now.Status == metav1.ConditionTrue && !was:
		controller.Warn(c.Recorder, cluster, v1alpha1.ConditionScaleDownBlocked, "Scale", now.Message)
	case was && (now == nil || now.Status != metav1.ConditionTrue):
		normal(nil, v1alpha1.ReasonScaleDownUnblocked, "Scale", "The removal of a node is not blocked any more")
	}
}

func podRef(cluster *v1alpha1.MarekvsCluster, ordinal int32) runtime.Object {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: fmt.Sprintf("%s-%d", cluster.Name, ordinal)}}
}
