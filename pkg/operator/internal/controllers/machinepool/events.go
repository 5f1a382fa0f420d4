// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// Reasons of the events of type Normal.
const (
	// reasonScaled: the number of desired instances has changed.
	reasonScaled = "Scaled"
	// reasonShardsReachable: all shards are connected again.
	reasonShardsReachable = "ShardsReachable"
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

// recordChanges records the events of type Normal for a status that was written.
func (c *Controller) recordChanges(ctx context.Context, before *v1beta1.NstanceMachinePoolStatus, written *v1beta1.NstanceMachinePool) {
	after := &written.Status
	if from, to := before.DesiredReplicas, after.DesiredReplicas; from != nil && to != nil && *from != *to && written.DeletionTimestamp.IsZero() {
		note := fmt.Sprintf("from %d to %d instances", *from, *to)
		if *to < *from {
			limited, cancel := context.WithTimeout(ctx, writerTimeout)
			defer cancel()
			if writer := c.replicasWriter(limited, written.Name); writer != "" {
				note += "; " + writer
			}
		}
		controller.Record(c.recorder, written, reasonScaled, "Scale", note)
	}
	if meta.IsStatusConditionFalse(before.Conditions, v1beta1.ConditionShardsReachable) &&
		meta.IsStatusConditionTrue(after.Conditions, v1beta1.ConditionShardsReachable) {
		controller.Record(c.recorder, written, reasonShardsReachable, "Connect", "all shards of the pool are connected again")
	}
}

// recordProblem records the reason of the new status if the old one did not have it.
func (c *Controller) recordProblem(pool *v1beta1.NstanceMachinePool, status v1beta1.NstanceMachinePoolStatus) {
	problem := controller.TurnedFalse(pool.Status.Conditions, status.Conditions, v1beta1.ConditionReady)
	if problem != nil && slices.Contains(warningReasons, problem.Reason) {
		controller.Warn(c.recorder, pool, problem.Reason, "Distribute", problem.Message)
	}
}

// recordBlocked records that a guard blocks a scale-down, when it begins to.
func (c *Controller) recordBlocked(pool *v1beta1.NstanceMachinePool, after []metav1.Condition) {
	was, blocked := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionScalingDown), meta.FindStatusCondition(after, v1beta1.ConditionScalingDown)
	switch {
	case blocked == nil || blocked.Status != metav1.ConditionTrue || blocked.Reason == v1beta1.ReasonRemoving:
	case was != nil && was.Reason == blocked.Reason:
	case blocked.Reason == v1beta1.ReasonStabilizing || blocked.Reason == v1beta1.ReasonMinReady:
		controller.Record(c.recorder, pool, "ScaleDownDelayed", "Scale", blocked.Message)
	default:
		controller.Warn(c.recorder, pool, "ScaleDownBlocked", "Scale", blocked.Message)
	}
}

// recordShortfall records an event when the reason of the condition CapacityAvailable has
// changed, unless the first one is that all is well.
func (c *Controller) recordShortfall(pool *v1beta1.NstanceMachinePool, status v1beta1.NstanceMachinePoolStatus) {
	before := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionCapacityAvailable)
	after := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionCapacityAvailable)
	switch {
	case after == nil || before != nil && before.Reason == after.Reason || before == nil && after.Status == metav1.ConditionTrue:
	case after.Status == metav1.ConditionFalse:
		controller.Warn(c.recorder, pool, after.Reason, "Distribute", after.Message)
	default:
		controller.Record(c.recorder, pool, after.Reason, "Distribute", "no shard has a shortfall, and none has lent instances")
	}
}
