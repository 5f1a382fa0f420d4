// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package poolevents records the events of a pool: what a status says that the status before did not.
package poolevents

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// Reasons of events that are no reasons of a condition.
const (
	// reasonScaled: the number of desired instances has changed.
	reasonScaled = "Scaled"
	// reasonShardsReachable: all shards are connected again.
	reasonShardsReachable  = "ShardsReachable"
	reasonRotationStarted  = "RotationStarted"
	reasonRotationFinished = "RotationFinished"
)

// warningReasons are the reasons for which a pool that is not ready gets an event,
// because a user can resolve them. The reasons of a shard are also recorded on its shard
// group.
var warningReasons = []string{
	v1beta1.ReasonUnknownShard,
	v1beta1.ReasonGroupInUse,
	v1beta1.ReasonMachinePoolConflict,
	v1beta1.ReasonTooManyReplicas,
	v1beta1.ReasonBelowMinimum,
	v1beta1.ReasonAmbiguousProviderID,
	v1beta1.ReasonNodeOfOtherShard,
	v1beta1.ReasonShardUnreachable,
	v1beta1.ReasonWrongShard,
	v1beta1.ReasonOtherCluster,
	v1beta1.ReasonConfigRejected,
	v1beta1.ReasonUnsupportedByServer,
	v1beta1.ReasonShardAhead,
	v1beta1.ReasonProviderError,
}

// rotationWarnings are the reasons for which a rotation does not go on, or is late, and a user has to act.
var rotationWarnings = []string{v1beta1.ReasonRotationFailed, v1beta1.ReasonInvalidSchedule, v1beta1.ReasonForcedAgeNear}

// Record records the events for a status that was written. lowered returns who lowered the replicas, ""
// if that is not known.
func Record(recorder events.EventRecorder, before, written *v1beta1.NstanceMachinePool, lowered func() string) {
	c := change{recorder: recorder, pool: before, written: written, before: before.Status.Conditions, after: written.Status.Conditions}
	c.recordProblem()
	c.recordBlocked()
	c.recordShortfall()
	c.recordPreferred()
	c.recordRotation()
	c.recordUnhealthy()
	if missing := controller.TurnedFalse(c.before, c.after, v1beta1.ConditionNodesJoined); missing != nil {
		controller.Warn(recorder, before, missing.Reason, "Join", missing.Message)
	}
	c.recordScaling(lowered)
	c.recordConnection()
}

// change is a change of the status of a pool.
type change struct {
	recorder      events.EventRecorder
	pool, written *v1beta1.NstanceMachinePool
	before, after []metav1.Condition
}

// conditions returns a condition before and after the change, nil if there is none.
func (c *change) conditions(kind string) (was, is *metav1.Condition) {
	return meta.FindStatusCondition(c.before, kind), meta.FindStatusCondition(c.after, kind)
}

// recordProblem records why the pool is not ready, once for each reason.
func (c *change) recordProblem() {
	problem := controller.TurnedFalse(c.before, c.after, v1beta1.ConditionReady)
	if problem != nil && slices.Contains(warningReasons, problem.Reason) {
		controller.Warn(c.recorder, c.pool, problem.Reason, "Distribute", problem.Message)
	}
}

// recordBlocked records that a guard blocks a scale-down, when it begins to.
func (c *change) recordBlocked() {
	was, blocked := c.conditions(v1beta1.ConditionScalingDown)
	switch {
	case blocked == nil || blocked.Status != metav1.ConditionTrue || blocked.Reason == v1beta1.ReasonRemoving:
	case was != nil && was.Reason == blocked.Reason:
	case blocked.Reason == v1beta1.ReasonStabilizing || blocked.Reason == v1beta1.ReasonMinReady:
		controller.Record(c.recorder, c.pool, "ScaleDownDelayed", "Scale", blocked.Message)
	default:
		controller.Warn(c.recorder, c.pool, "ScaleDownBlocked", "Scale", blocked.Message)
	}
}

// recordShortfall records an event when the reason of the condition CapacityAvailable has
// changed, unless the first reason is that nothing is missing.
func (c *change) recordShortfall() {
	was, is := c.conditions(v1beta1.ConditionCapacityAvailable)
	switch {
	case is == nil || was != nil && was.Reason == is.Reason || was == nil && is.Status == metav1.ConditionTrue:
	case is.Status == metav1.ConditionFalse:
		controller.Warn(c.recorder, c.pool, is.Reason, "Distribute", is.Message)
	default:
		controller.Record(c.recorder, c.pool, is.Reason, "Distribute", "no shard has a shortfall, and none has lent instances")
	}
}

// recordPreferred records that instances are of other candidates than they should be, when that
// begins, and when it has ended. What is not known is no change.
func (c *change) recordPreferred() {
	if fallback := controller.TurnedFalse(c.before, c.after, v1beta1.ConditionPreferredInstances); fallback != nil {
		controller.Warn(c.recorder, c.pool, fallback.Reason, "SelectCandidate", fallback.Message)
	}
	if meta.IsStatusConditionFalse(c.before, v1beta1.ConditionPreferredInstances) && meta.IsStatusConditionTrue(c.after, v1beta1.ConditionPreferredInstances) {
		controller.Record(c.recorder, c.pool, v1beta1.ReasonPreferred, "SelectCandidate", "all instances are of the candidates that they should be of")
	}
}

// recordRotation records an event when a rotation begins, ends, or needs a user.
func (c *change) recordRotation() {
	was, is := c.conditions(v1beta1.ConditionRollingOut)
	if is == nil {
		return
	}
	rolled := was != nil && was.Status == metav1.ConditionTrue
	rolls := is.Status == metav1.ConditionTrue
	switch {
	case rolls && !rolled:
		controller.Record(c.recorder, c.pool, reasonRotationStarted, "Rotate", is.Message)
	case rolled && !rolls:
		controller.Record(c.recorder, c.pool, reasonRotationFinished, "Rotate", "all instances are up to date")
	}
	if slices.Contains(rotationWarnings, is.Reason) && (was == nil || was.Reason != is.Reason) {
		controller.Warn(c.recorder, c.pool, is.Reason, "Rotate", is.Message)
	}
}

// recordUnhealthy records that too many Nodes are unhealthy, when that begins.
func (c *change) recordUnhealthy() {
	was, is := c.conditions(v1beta1.ConditionRemediating)
	if is != nil && is.Reason == v1beta1.ReasonTooManyUnhealthy && (was == nil || was.Reason != is.Reason) {
		controller.Warn(c.recorder, c.pool, is.Reason, "Replace", is.Message)
	}
}

// recordScaling records that the number of desired instances has changed.
func (c *change) recordScaling(lowered func() string) {
	from, to := c.pool.Status.DesiredReplicas, c.written.Status.DesiredReplicas
	if from == nil || to == nil || *from == *to || !c.written.DeletionTimestamp.IsZero() {
		return
	}
	note := fmt.Sprintf("from %d to %d instances", *from, *to)
	if *to < *from {
		if writer := lowered(); writer != "" {
			note += "; " + writer
		}
	}
	controller.Record(c.recorder, c.written, reasonScaled, "Scale", note)
}

// recordConnection records that all shards are connected again.
func (c *change) recordConnection() {
	if meta.IsStatusConditionFalse(c.before, v1beta1.ConditionShardsReachable) && meta.IsStatusConditionTrue(c.after, v1beta1.ConditionShardsReachable) {
		controller.Record(c.recorder, c.written, reasonShardsReachable, "Connect", "all shards of the pool are connected again")
	}
}
