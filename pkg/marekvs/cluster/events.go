// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/controller"
)

// recordWrites records each change of the size and each deletion as one event, whether or not the status
// can be written afterwards. The related object makes events of the same reason differ, so that they are
// not aggregated.
func (c *Controller) recordWrites(cluster *v1alpha1.MarekvsCluster, result *syncResult) {
	normal := func(related runtime.Object, reason, action, format string, args ...any) {
		c.Recorder.Eventf(cluster, related, corev1.EventTypeNormal, reason, action, format, args...)
	}
	if o := result.observed; o != nil && result.replicas > 0 && result.replicas != o.Replicas {
		if result.replicas > o.Replicas {
			normal(podRef(cluster, result.replicas-1), v1alpha1.ReasonScaledUp, "Scale", "Scaled from %d to %d nodes", o.Replicas, result.replicas)
		} else {
			normal(podRef(cluster, result.replicas), v1alpha1.ReasonScaledDown, "Scale", "Scaled from %d to %d nodes", o.Replicas, result.replicas)
		}
	}
	for _, name := range result.reclaimed {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: name}}
		normal(claim, v1alpha1.ReasonVolumeReclaimed, "Reclaim", "Deleted volume claim %s of a removed node", name)
	}
	for _, resize := range result.resized {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: resize.claim.Name}}
		if resize.raised {
			normal(claim, v1alpha1.ReasonVolumeExpanded, "Expand", "Raised the size of volume claim %s to %s", resize.claim.Name, &resize.request)
		} else {
			normal(claim, v1alpha1.ReasonExpansionReduced, "Expand", "Lowered the size of volume claim %s to %s", resize.claim.Name, &resize.request)
		}
	}
	if result.deletedForClaims {
		normal(nil, v1alpha1.ReasonStatefulSetRecreated, "Expand", "Deleted the StatefulSet without its Pods, to create it again with volume claims of %s", &result.expansion.size)
	}
	if name := result.replacedClaim; name != "" {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: name}}
		normal(claim, v1alpha1.ReasonVolumeReplaced, "Replace", "Deleted volume claim %s and its Pod, to replace them%s", name, because(result.decision.Replacement.Node))
	}
	if name := result.replacedPod; name != "" {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: name}}
		normal(pod, v1alpha1.ReasonVolumeReplaced, "Replace", "Deleted Pod %s, whose volume claim is being deleted", name)
	}
	for _, name := range result.replaced {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: name}}
		normal(pod, v1alpha1.ReasonPodReplaced, "RollOut", "Deleted Pod %s, which did not work, so that it gets the present template", name)
	}
}

// recordTransitions records each transition of a condition as one event.
func (c *Controller) recordTransitions(cluster *v1alpha1.MarekvsCluster, status *v1alpha1.MarekvsClusterStatus) {
	before := cluster.Status.Conditions
	for _, kind := range []string{v1alpha1.ConditionOwned, v1alpha1.ConditionReconciled} {
		if turned := controller.TurnedFalse(before, status.Conditions, kind); turned != nil {
			controller.Warn(c.Recorder, cluster, turned.Reason, "Apply", turned.Message)
			break
		}
	}
	if rolled := controller.TurnedFalse(before, status.Conditions, v1alpha1.ConditionRolledOut); rolled != nil && rolled.Reason != v1alpha1.ReasonRollingOut {
		controller.Warn(c.Recorder, cluster, rolled.Reason, "RollOut", rolled.Message)
	}
	if full := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionDiskPressure); full != nil && full.Reason == v1alpha1.ReasonDiskFull {
		if was := meta.FindStatusCondition(before, v1alpha1.ConditionDiskPressure); was == nil || was.Reason != full.Reason {
			controller.Warn(c.Recorder, cluster, full.Reason, "Scale", full.Message)
		}
	}
	if kept := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionVolumesExpanded); kept != nil && kept.Reason == v1alpha1.ReasonExpansionNotAllowed {
		if was := meta.FindStatusCondition(before, v1alpha1.ConditionVolumesExpanded); was == nil || was.Reason != kept.Reason {
			controller.Warn(c.Recorder, cluster, kept.Reason, "Expand", kept.Message)
		}
	}
	if lost := controller.TurnedFalse(before, status.Conditions, v1alpha1.ConditionVolumesAvailable); lost != nil &&
		lost.Reason != v1alpha1.ReasonReplacing && !meta.IsStatusConditionFalse(before, v1alpha1.ConditionVolumesAvailable) {
		controller.Warn(c.Recorder, cluster, lost.Reason, "Replace", lost.Message)
	}
	was := meta.IsStatusConditionTrue(before, v1alpha1.ConditionScaleDownBlocked)
	now := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionScaleDownBlocked)
	switch {
	case now != nil && now.Status == metav1.ConditionTrue && !was:
		controller.Warn(c.Recorder, cluster, v1alpha1.ConditionScaleDownBlocked, "Scale", now.Message)
	case was && (now == nil || now.Status != metav1.ConditionTrue):
		c.Recorder.Eventf(cluster, nil, corev1.EventTypeNormal, v1alpha1.ReasonScaleDownUnblocked, "Scale", "The removal of a node is not blocked any more")
	}
}

func podRef(cluster *v1alpha1.MarekvsCluster, ordinal int32) runtime.Object {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: cluster.Namespace, Name: fmt.Sprintf("%s-%d", cluster.Name, ordinal)}}
}
