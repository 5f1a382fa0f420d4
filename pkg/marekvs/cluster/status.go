// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/marekvs/children"
	"nstance.dev/operator/pkg/marekvs/scale"
)

// rateChange is the share by which a rate must differ from the published one.
const rateChange = 0.05

// newStatus returns the status after a sync that ended with err.
func newStatus(cluster *v1alpha1.MarekvsCluster, did *result, err error) v1alpha1.MarekvsClusterStatus {
	status := *cluster.Status.DeepCopy()
	status.ObservedGeneration = cluster.Generation
	status.Selector = labels.SelectorFromSet(children.Selector(cluster.Name)).String()
	set := func(kind string, is bool, reason, message string) {
		value := metav1.ConditionFalse
		if is {
			value = metav1.ConditionTrue
		}
		controller.SetCondition(&status.Conditions, cluster.Generation, kind, value, cmp.Or(reason, v1alpha1.ReasonAsExpected), message)
	}
	setErrors(set, err)
	if did.created || did.observed == nil {
		if did.created {
			status.Replicas, status.DesiredNodes = did.replicas, &did.decision.Target
		}
		status.ReadyNodes, status.UnderreplicatedPartitions, status.OpsPerSecond = ptr.To[int32](0), nil, ""
		status.Phase, status.Message = v1alpha1.PhaseReconciling, "the StatefulSet is being created"
		if err != nil {
			status.Message = err.Error()
		}
		return status
	}
	o, decision := did.observed, &did.decision
	status.Replicas, status.DesiredNodes, status.ReadyNodes = o.Replicas, &decision.Target, ptr.To(o.Ready())
	if did.replicas > 0 {
		status.Replicas = did.replicas
	}
	status.UnderreplicatedPartitions = o.Underreplicated()
	status.OpsPerSecond = publishedRate(status.OpsPerSecond, did.load)
	if err == nil {
		status.LastScaleUpTime, status.LastScaleDownTime = did.scaledUp, did.scaledDown
	}
	missing := o.Replicas - o.Ready()
	set(v1alpha1.ConditionAvailable, missing < o.ReplicationFactor, ifNot(missing == 0, v1alpha1.ReasonNotAllReady),
		fmt.Sprintf("%d of %d pods are ready.", o.Ready(), o.Replicas))
	sampled, want := o.Sampled()
	set(v1alpha1.ConditionMetricsAvailable, sampled == want, ifNot(sampled == want, v1alpha1.ReasonMetricsUnavailable),
		fmt.Sprintf("%d of %d pods report their metrics.", sampled, want))
	setProgress(set, did)
	status.Phase, status.Message = phase(cluster, did)
	return status
}

type setter func(kind string, is bool, reason, message string)

func ifNot(expected bool, reason string) string {
	if expected {
		return ""
	}
	return reason
}

// setErrors sets the conditions about an error.
func setErrors(set setter, err error) {
	var conflict *notOwnedError
	var claim *reclaimError
	if errors.As(err, &conflict) {
		set(v1alpha1.ConditionOwned, false, v1alpha1.ReasonNameConflict, conflict.Error()+".")
	} else {
		set(v1alpha1.ConditionOwned, true, "", "")
	}
	switch {
	case err == nil:
		set(v1alpha1.ConditionReconciled, true, "", "")
	case errors.As(err, &conflict):
		set(v1alpha1.ConditionReconciled, false, v1alpha1.ReasonNameConflict, err.Error())
	case errors.As(err, &claim):
		set(v1alpha1.ConditionReconciled, false, v1alpha1.ReasonDeleteFailed, err.Error())
	default:
		set(v1alpha1.ConditionReconciled, false, v1alpha1.ReasonApplyFailed, err.Error())
	}
}

// setProgress sets the conditions about changes of the nodes.
func setProgress(set setter, did *result) {
	o, decision := did.observed, &did.decision
	rollout := decision.Rollout
	progressing, reason, message := decision.Target != o.Replicas, v1alpha1.ReasonScaledUp, fmt.Sprintf("Scaling from %d to %d nodes.", o.Replicas, decision.Target)
	if decision.Target < o.Replicas {
		reason = v1alpha1.ReasonScaledDown
	}
	if blocked := decision.Step.Blocked; blocked != nil {
		reason, message = blocked.Reason, blocked.Message+"."
		set(v1alpha1.ConditionScaleDownBlocked, !transitional(blocked), ifNot(transitional(blocked), blocked.Reason), ifNot(transitional(blocked), message))
	} else {
		set(v1alpha1.ConditionScaleDownBlocked, false, "", "")
	}
	switch {
	case rollout.Done:
		set(v1alpha1.ConditionRolledOut, true, "", "")
	case rollout.Halted:
		set(v1alpha1.ConditionRolledOut, false, v1alpha1.ReasonRolloutHalted, rollout.Waiting.Message+".")
	default:
		set(v1alpha1.ConditionRolledOut, false, v1alpha1.ReasonRollingOut, fmt.Sprintf("Pods from ordinal %d on are updated.", rollout.Partition))
	}
	if !progressing && !rollout.Done {
		progressing, reason, message = !rollout.Halted, v1alpha1.ReasonRollingOut, "Pods are being updated."
	}
	if progressing {
		set(v1alpha1.ConditionProgressing, true, reason, message)
	} else {
		set(v1alpha1.ConditionProgressing, false, "", "")
	}
}

// transitional reports whether a removal only waits for the last change.
func transitional(blocked *scale.Block) bool {
	switch blocked.Reason {
	case v1alpha1.ReasonPodTerminating, v1alpha1.ReasonNotObserved, v1alpha1.ReasonSettling, v1alpha1.ReasonRepairing,
		v1alpha1.ReasonStabilizing, v1alpha1.ReasonRollingOut:
		return true
	}
	return false
}

// phase summarizes a sync. A cluster is healthy only if it has its size, every node is ready
// and observed, and every copy exists.
func phase(cluster *v1alpha1.MarekvsCluster, did *result) (phase v1alpha1.Phase, message string) {
	o, decision := did.observed, &did.decision
	sampled, want := o.Sampled()
	unreachable := fmt.Sprintf("metrics unreachable (%d of %d pods scraped)", sampled, want)
	switch blocked := decision.Step.Blocked; {
	case blocked != nil && transitional(blocked):
		return v1alpha1.PhaseScalingDown, fmt.Sprintf("scale-down to %d waits: %s", decision.Target, blocked.Message)
	case blocked != nil:
		return v1alpha1.PhaseBlocked, fmt.Sprintf("scale-down to %d deferred: %s", decision.Target, blocked.Message)
	case decision.Step.Replicas > o.Replicas:
		return v1alpha1.PhaseScalingUp, fmt.Sprintf("replicas %d -> %d (target %d)", o.Replicas, decision.Step.Replicas, decision.Target)
	case decision.Step.Replicas < o.Replicas:
		return v1alpha1.PhaseScalingDown, fmt.Sprintf("replicas %d -> %d (target %d)", o.Replicas, decision.Step.Replicas, decision.Target)
	case decision.Rollout.Halted:
		return v1alpha1.PhaseBlocked, "rollout halted: " + decision.Rollout.Waiting.Message
	case sampled < want && cluster.Spec.Autoscale != nil && o.Ready() == o.Replicas:
		return v1alpha1.PhaseBlocked, "the size is kept: " + unreachable
	case o.Ready() < o.Replicas:
		return v1alpha1.PhaseReconciling, fmt.Sprintf("%d of %d pods ready", o.Ready(), o.Replicas)
	case sampled < want:
		return v1alpha1.PhaseReconciling, unreachable
	case *o.Underreplicated() > 0:
		return v1alpha1.PhaseReconciling, fmt.Sprintf("%d partitions under-replicated", *o.Underreplicated())
	case !decision.Rollout.Done:
		return v1alpha1.PhaseReconciling, "pods are being updated"
	}
	return v1alpha1.PhaseHealthy, fmt.Sprintf("at target %d", decision.Target)
}

// publishedRate returns the rate to publish: the published one, unless the present one differs.
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
