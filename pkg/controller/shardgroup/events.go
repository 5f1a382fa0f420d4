// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// recordProblems records conditions that turned False as events. Ready is recorded only
// if an administrator must decide something.
func (c *Controller) recordProblems(object *v1beta1.NstanceShardGroup, status v1beta1.NstanceShardGroupStatus) {
	for kind, action := range map[string]string{
		v1beta1.ConditionShardReachable: "Connect",
		v1beta1.ConditionConfigValid:    "UpsertGroup",
	} {
		if problem := controller.TurnedFalse(object.Status.Conditions, status.Conditions, kind); problem != nil {
			controller.Warn(c.recorder, object, problem.Reason, action, problem.Message)
		}
	}
	if problem := controller.TurnedFalse(object.Status.Conditions, status.Conditions, v1beta1.ConditionReady); problem != nil &&
		problem.Reason == v1beta1.ReasonShardAhead {
		controller.Warn(c.recorder, object, problem.Reason, "UpsertGroup", problem.Message)
	}
}
