// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// recordTrouble reports what the new status says for the first time.
func (c *Controller) recordTrouble(object *v1beta1.NstanceShardGroup, status v1beta1.NstanceShardGroupStatus) {
	for kind, action := range map[string]string{
		v1beta1.ConditionShardReachable: "Connect",
		v1beta1.ConditionConfigValid:    "UpsertGroup",
	} {
		if trouble := controller.TurnedFalse(object.Status.Conditions, status.Conditions, kind); trouble != nil {
			controller.Warn(c.recorder, object, trouble.Reason, action, trouble.Message)
		}
	}
}
