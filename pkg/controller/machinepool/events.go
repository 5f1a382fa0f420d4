// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"slices"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// warningReasons are the reasons for which a pool that is not ready gets an event:
// those that a user can resolve. Those of a shard are also recorded on its shard
// group.
var warningReasons = []string{
	v1beta1.ReasonUnknownShard,
	v1beta1.ReasonGroupInUse,
	v1beta1.ReasonMachinePoolConflict,
	v1beta1.ReasonAmbiguousProviderID,
	v1beta1.ReasonShardUnreachable,
	v1beta1.ReasonWrongShard,
	v1beta1.ReasonOtherCluster,
	v1beta1.ReasonConfigRejected,
	v1beta1.ReasonShardAhead,
	v1beta1.ReasonProviderError,
}

// recordProblem records the reason of the new status if the old one did not have it.
func (c *Controller) recordProblem(pool *v1beta1.NstanceMachinePool, status v1beta1.NstanceMachinePoolStatus) {
	problem := controller.TurnedFalse(pool.Status.Conditions, status.Conditions, v1beta1.ConditionReady)
	if problem != nil && slices.Contains(warningReasons, problem.Reason) {
		controller.Warn(c.recorder, pool, problem.Reason, "Distribute", problem.Message)
	}
}
