// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"slices"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// reported are the reasons for which a pool that is not ready gets an event: the
// ones that somebody has to do something about. Those of a shard are reported on
// its shard group as well.
var reported = []string{
	v1beta1.ReasonUnknownShard,
	v1beta1.ReasonGroupInUse,
	v1beta1.ReasonMachinePoolConflict,
	v1beta1.ReasonAmbiguousProviderID,
	v1beta1.ReasonShardUnreachable,
	v1beta1.ReasonConfigRejected,
	v1beta1.ReasonProviderError,
}

// recordTrouble reports what the new status says for the first time.
func (c *Controller) recordTrouble(pool *v1beta1.NstanceMachinePool, status v1beta1.NstanceMachinePoolStatus) {
	trouble := controller.TurnedFalse(pool.Status.Conditions, status.Conditions, v1beta1.ConditionReady)
	if trouble != nil && slices.Contains(reported, trouble.Reason) {
		controller.Warn(c.recorder, pool, trouble.Reason, "Distribute", trouble.Message)
	}
}
