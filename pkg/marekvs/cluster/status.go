// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/controller"
	marekvsac "nstance.dev/operator/pkg/generated/applyconfiguration/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/marekvs/children"
	"nstance.dev/operator/pkg/marekvs/scale"
)

// rateChange is the share by which a rate must differ from the published rate to be
// published. It avoids a write in every sync.
const rateChange = 0.05

// newStatus returns the status of a cluster after a sync, which ended with err or, if err is
// nil, succeeded. Conditions that the sync could not observe keep their last value.
func newStatus(cluster *v1alpha1.MarekvsCluster, result *syncResult, err error) v1alpha1.MarekvsClusterStatus {
	status := *cluster.Status.DeepCopy()
	status.ObservedGeneration = cluster.Generation
	status.Selector = labels.SelectorFromSet(children.Labels(cluster.Name)).String()
	setConditions(&status, owned(err), reconciled(err))
	if cluster.Spec.Paused {
		setConditions(&status, condition(v1alpha1.ConditionPaused, true, v1alpha1.ReasonPaused, "Nothing is changed, because spec.paused is true."))
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionPaused)
	}
	if result.adopting {
		// The values of the Pods, which run on, are those before.
		if result.created {
			status.Replicas = result.replicas
		}
		status.Phase, status.Message = v1alpha1.PhaseReconciling, "the StatefulSet is being created again for its Pods, which run on"
		setConditions(&status, ready(&status, v1alpha1.ReasonCreating, err))
		return status
	}
	if result.created || result.observed == nil {
		if result.created {
			status.Replicas, status.DesiredNodes = result.replicas, &result.decision.Target
		}
		status.ReadyNodes, status.UnderreplicatedPartitions, status.OpsPerSecond = ptr.To[int32](0), nil, ""
		status.Phase, status.Message = v1alpha1.PhaseReconciling, "the StatefulSet is being created"
		if err != nil {
			status.Message = controller.Truncate(err.Error(), v1alpha1.MaxMessage)
		} else if cluster.Spec.Paused {
			status.Message = "there is no StatefulSet, and it is not created, because spec.paused is true"
		}
		setConditions(&status, ready(&status, v1alpha1.ReasonCreating, err))
		return status
	}
	o, decision := result.observed, &result.decision
	status.Replicas, status.DesiredNodes, status.ReadyNodes = o.Replicas, &decision.Target, ptr.To(o.Ready())
	if result.replicas > 0 {
		status.Replicas = result.replicas
	}
	status.UnderreplicatedPartitions = o.Underreplicated()
	status.StorageReducibleTo = result.expansion.reducibleTo
	status.OpsPerSecond = publishedRate(status.OpsPerSecond, result.load)
	if err == nil {
		status.LastScaleUpTime, status.LastScaleDownTime = result.scaledUp, result.scaledDown
	}
	setConditions(&status, available(o), metricsAvailable(o),
		scaleDownBlocked(result), rolledOut(cluster, result), progressing(cluster, result), volumesExpanded(result), volumesAvailable(result))
	setSurvivesZoneLoss(&status, o, result.zones)
	if cluster.Spec.Autoscale != nil && cluster.Spec.Autoscale.TargetDiskPercent > 0 {
		setConditions(&status, diskPressure(&decision.Disk))
	} else {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionDiskPressure)
	}
	var reason string
	status.Phase, reason, status.Message = phase(cluster, result)
	status.Message = controller.Truncate(status.Message, v1alpha1.MaxMessage)
	setConditions(&status, ready(&status, reason, err))
	return status
}

// setConditions replaces the conditions of the same types, with the generation of the status.
func setConditions(status *v1alpha1.MarekvsClusterStatus, conditions ...metav1.Condition) {
	for _, c := range conditions {
		controller.SetCondition(&status.Conditions, status.ObservedGeneration, c.Type, c.Status, c.Reason, c.Message)
	}
}

// condition returns a condition. An empty reason becomes AsExpected, because the API requires
// a reason.
func condition(kind string, isTrue bool, reason, message string) metav1.Condition {
	status := metav1.ConditionFalse
	if isTrue {
		status = metav1.ConditionTrue
	}
	return metav1.Condition{Type: kind, Status: status, Reason: cmp.Or(reason, v1alpha1.ReasonAsExpected), Message: message}
}

// ready summarizes a status whose phase has a reason, and the error of the sync.
func ready(status *v1alpha1.MarekvsClusterStatus, reason string, err error) metav1.Condition {
	if err != nil {
		failed := reconciled(err)
		return condition(v1alpha1.ConditionReady, false, failed.Reason, failed.Message)
	}
	message := fmt.Sprintf("The phase is %s: %s.", status.Phase, status.Message)
	return condition(v1alpha1.ConditionReady, status.Phase == v1alpha1.PhaseHealthy, reason, message)
}

func owned(err error) metav1.Condition {
	var conflict *notOwnedError
	if errors.As(err, &conflict) {
		return condition(v1alpha1.ConditionOwned, false, v1alpha1.ReasonNameConflict, conflict.Error()+".")
	}
	return condition(v1alpha1.ConditionOwned, true, "", "")
}

func reconciled(err error) metav1.Condition {
	var conflict *notOwnedError
	var claim *reclaimError
	reason := v1alpha1.ReasonApplyFailed
	switch {
	case err == nil:
		return condition(v1alpha1.ConditionReconciled, true, "", "")
	case errors.As(err, &conflict):
		reason = v1alpha1.ReasonNameConflict
	case errors.As(err, &claim):
		reason = v1alpha1.ReasonDeleteFailed
	}
	return condition(v1alpha1.ConditionReconciled, false, reason, err.Error())
}

// available is True while fewer Pods than the replication factor are not ready: each partition
// then has a copy on a ready Pod.
func available(o *scale.Observation) metav1.Condition {
	missing, reason := o.Replicas-o.Ready(), ""
	if missing != 0 {
		reason = v1alpha1.ReasonNotAllReady
	}
	message := fmt.Sprintf("%d of %d pods are ready.", o.Ready(), o.Replicas)
	return condition(v1alpha1.ConditionAvailable, missing < o.ReplicationFactor, reason, message)
}

func metricsAvailable(o *scale.Observation) metav1.Condition {
	sampled, want := o.Sampled()
	message := fmt.Sprintf("%d of %d pods report their metrics.", sampled, want)
	if sampled != want {
		return condition(v1alpha1.ConditionMetricsAvailable, false, v1alpha1.ReasonMetricsUnavailable, message)
	}
	return condition(v1alpha1.ConditionMetricsAvailable, true, "", message)
}

// diskPressure is True while a volume is too full, and says why no node is added for it.
func diskPressure(disk *scale.Disk) metav1.Condition {
	switch {
	case !disk.Full:
		return condition(v1alpha1.ConditionDiskPressure, false, "", "")
	case disk.Stopped != nil:
		return condition(v1alpha1.ConditionDiskPressure, true, disk.Stopped.Reason, disk.Stopped.Message+".")
	}
	return condition(v1alpha1.ConditionDiskPressure, true, v1alpha1.ReasonScalingUp, "A volume is too full, and a node is added when no copies move.")
}

// scaleDownBlocked is False while a removal only waits for the last change to finish: that
// needs no attention, unless it takes too long.
func scaleDownBlocked(result *syncResult) metav1.Condition {
	blocked := result.decision.Step.Blocked
	if blocked == nil || transitional(result) {
		return condition(v1alpha1.ConditionScaleDownBlocked, false, "", "")
	}
	return condition(v1alpha1.ConditionScaleDownBlocked, true, blocked.Reason, blocked.Message+".")
}

func rolledOut(cluster *v1alpha1.MarekvsCluster, result *syncResult) metav1.Condition {
	rollout := &result.decision.Rollout
	switch {
	case rollout.Done:
		return condition(v1alpha1.ConditionRolledOut, true, "", "")
	case rollout.Halted:
		return condition(v1alpha1.ConditionRolledOut, false, v1alpha1.ReasonRolloutHalted, rollout.Waiting.Message+".")
	case result.stalled:
		return condition(v1alpha1.ConditionRolledOut, false, v1alpha1.ReasonProgressDeadlineExceeded, stalledMessage(cluster, rollout)+".")
	}
	message := fmt.Sprintf("Pods from ordinal %d on are updated%s.", rollout.Partition, why(rollout))
	return condition(v1alpha1.ConditionRolledOut, false, v1alpha1.ReasonRollingOut, message)
}

// why returns why the next Pod is not updated yet, as the end of a sentence.
func why(rollout *scale.Rollout) string {
	if rollout.Waiting == nil {
		return ""
	}
	return ", and the next Pod waits: " + rollout.Waiting.Message
}

func stalledMessage(cluster *v1alpha1.MarekvsCluster, rollout *scale.Rollout) string {
	return fmt.Sprintf("no Pod was updated for %s%s", progressDeadline(cluster), why(rollout))
}

// progressing is True while the size or the Pods change. A change of the size explains it
// first, with the reason why it is blocked if it is.
func progressing(cluster *v1alpha1.MarekvsCluster, result *syncResult) metav1.Condition {
	o, decision := result.observed, &result.decision
	because := func(reason, message string) metav1.Condition {
		return condition(v1alpha1.ConditionProgressing, true, reason, message)
	}
	scaling := fmt.Sprintf("Scaling from %d to %d nodes.", o.Replicas, decision.Target)
	switch blocked := decision.Step.Blocked; {
	case blocked != nil && decision.Target != o.Replicas:
		return because(blocked.Reason, blocked.Message+".")
	case decision.Target > o.Replicas:
		return because(v1alpha1.ReasonScaledUp, scaling)
	case decision.Target < o.Replicas:
		return because(v1alpha1.ReasonScaledDown, scaling)
	case !decision.Rollout.Done && !decision.Rollout.Halted && result.stalled:
		return condition(v1alpha1.ConditionProgressing, false, v1alpha1.ReasonProgressDeadlineExceeded, stalledMessage(cluster, &decision.Rollout)+".")
	case !decision.Rollout.Done && !decision.Rollout.Halted:
		return because(v1alpha1.ReasonRollingOut, "Pods are being updated"+why(&decision.Rollout)+".")
	}
	return condition(v1alpha1.ConditionProgressing, false, "", "")
}

// transitional reports whether a removal only waits for the last change to finish, and not for too
// long.
func transitional(result *syncResult) bool {
	switch result.decision.Step.Blocked.Reason {
	case v1alpha1.ReasonStabilizing:
		return true
	case v1alpha1.ReasonPodTerminating, v1alpha1.ReasonNotObserved, v1alpha1.ReasonSettling, v1alpha1.ReasonRepairing,
		v1alpha1.ReasonRollingOut:
		return !result.stalled
	}
	return false
}

// phase summarizes a sync. A cluster is healthy only if it has its size, every node is ready
// and observed, and every copy exists. The reason explains the condition Ready.
func phase(cluster *v1alpha1.MarekvsCluster, result *syncResult) (phase v1alpha1.Phase, reason, message string) {
	o, decision := result.observed, &result.decision
	sampled, want := o.Sampled()
	unreachable := fmt.Sprintf("metrics unreachable (%d of %d pods scraped)", sampled, want)
	lost, replacement := replacing(result)
	resized := fmt.Sprintf("replicas %d -> %d (target %d)", o.Replicas, decision.Step.Replicas, decision.Target)
	switch blocked := decision.Step.Blocked; {
	case cluster.Spec.Paused && (decision.Target != o.Replicas || !decision.Rollout.Done || result.expansion.waiting != nil || lost != ""):
		return v1alpha1.PhaseBlocked, v1alpha1.ReasonPaused, "the cluster does not have its spec, because spec.paused is true"
	case blocked != nil && transitional(result):
		return v1alpha1.PhaseScalingDown, blocked.Reason, fmt.Sprintf("scale-down to %d waits: %s", decision.Target, blocked.Message)
	case blocked != nil:
		return v1alpha1.PhaseBlocked, blocked.Reason, fmt.Sprintf("scale-down to %d deferred: %s", decision.Target, blocked.Message)
	case decision.Step.Replicas > o.Replicas:
		return v1alpha1.PhaseScalingUp, v1alpha1.ReasonScalingUp, resized
	case decision.Step.Replicas < o.Replicas:
		return v1alpha1.PhaseScalingDown, v1alpha1.ReasonScalingDown, resized
	case decision.Rollout.Halted:
		return v1alpha1.PhaseBlocked, v1alpha1.ReasonRolloutHalted, "rollout halted: " + decision.Rollout.Waiting.Message
	case !decision.Rollout.Done && result.stalled:
		return v1alpha1.PhaseBlocked, v1alpha1.ReasonProgressDeadlineExceeded, "the update waits: " + stalledMessage(cluster, &decision.Rollout)
	case lost != "" && (result.stalled || needsUser(cluster, lost)):
		return v1alpha1.PhaseBlocked, lost, replacement
	case lost != "":
		return v1alpha1.PhaseReconciling, lost, replacement
	case sampled < want && cluster.Spec.Autoscale != nil && o.Ready() == o.Replicas:
		return v1alpha1.PhaseBlocked, v1alpha1.ReasonMetricsUnavailable, "the size is kept: " + unreachable
	case o.Ready() < o.Replicas:
		return v1alpha1.PhaseReconciling, v1alpha1.ReasonNotAllReady, fmt.Sprintf("%d of %d pods ready", o.Ready(), o.Replicas)
	case sampled < want:
		return v1alpha1.PhaseReconciling, v1alpha1.ReasonMetricsUnavailable, unreachable
	case *o.Underreplicated() > 0:
		return v1alpha1.PhaseReconciling, v1alpha1.ReasonUnderreplicated, fmt.Sprintf("%d partitions under-replicated", *o.Underreplicated())
	case !decision.Rollout.Done:
		return v1alpha1.PhaseReconciling, v1alpha1.ReasonRollingOut, "pods are being updated" + why(&decision.Rollout)
	case result.expansion.blocked():
		return v1alpha1.PhaseBlocked, v1alpha1.ReasonExpansionNotAllowed, result.expansion.waiting.Message
	case result.expansion.waiting != nil:
		return v1alpha1.PhaseReconciling, v1alpha1.ReasonExpanding, result.expansion.waiting.Message
	}
	return v1alpha1.PhaseHealthy, v1alpha1.ReasonAsExpected, fmt.Sprintf("at target %d", decision.Target)
}

// setSurvivesZoneLoss sets whether the loss of a zone leaves a copy of each partition. The store places copies without
// regard to zones (github.com/yannick/marekvs, commit defc648, crates/marekvs-cluster/src/placement.rs), so any nodes may
// have all copies of a partition that are as many as there are copies. There is no such condition without zones.
func setSurvivesZoneLoss(status *v1alpha1.MarekvsClusterStatus, o *scale.Observation, count map[string]int32) {
	if count == nil {
		return // the last value stays
	}
	if _, without := count[""]; without || len(count) < 2 {
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionSurvivesZoneLoss)
		return
	}
	var largest string
	for _, zone := range slices.Sorted(maps.Keys(count)) {
		if count[zone] > count[largest] {
			largest = zone
		}
	}
	message := fmt.Sprintf("Zone %s has %d of %d nodes, and each partition has %d copies.", largest, count[largest], o.Replicas, o.ReplicationFactor)
	if count[largest] >= o.ReplicationFactor {
		setConditions(status, condition(v1alpha1.ConditionSurvivesZoneLoss, false, v1alpha1.ReasonZonesNotUsed,
			message+" The store places copies without regard to zones: all copies of a partition may be in that zone."))
		return
	}
	setConditions(status, condition(v1alpha1.ConditionSurvivesZoneLoss, true, "", message))
}

// publishedRate returns the rate to publish. It keeps the published rate before unless the
// present rate differs by more than rateChange.
func publishedRate(before string, load *scale.Load) string {
	if !load.Complete || load.Rate == nil {
		return ""
	}
	published, err := strconv.ParseFloat(before, 64)
	if err == nil && math.Abs(published-*load.Rate) <= rateChange*max(published, *load.Rate) {
		return before
	}
	return strconv.FormatFloat(*load.Rate, 'f', 1, 64)
}

// publish writes the status if it changed, and records what happened as events.
func (c *Controller) publish(ctx context.Context, cluster *v1alpha1.MarekvsCluster, result *syncResult, failure error) error {
	c.recordWrites(cluster, result)
	status := newStatus(cluster, result, failure)
	if !equality.Semantic.DeepEqual(status, cluster.Status) {
		written, err := c.Marekvs.MarekvsClusters(cluster.Namespace).ApplyStatus(ctx,
			marekvsac.MarekvsCluster(cluster.Name, cluster.Namespace).WithUID(cluster.UID).WithStatus(
				controller.ApplyConfiguration[marekvsac.MarekvsClusterStatusApplyConfiguration](status)), apply)
		if apierrors.IsNotFound(err) {
			return nil // deleted meanwhile
		}
		if err != nil {
			return fmt.Errorf("apply the status of MarekvsCluster %s: %w", cluster.Name, err)
		}
		c.clusterWrites.Record(written)
	}
	c.recordTransitions(cluster, &status)
	return nil
}
