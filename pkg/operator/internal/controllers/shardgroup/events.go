// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// Reasons of the events that shard groups get.
const (
	// reasonShardAbandoned: the instances on a lost shard were given up.
	reasonShardAbandoned = "ShardAbandoned"
	// reasonShardReachable: the shard is connected again.
	reasonShardReachable = "ShardReachable"
	// reasonGroupRetained: the shard group is deleted, and the group stays on the shard.
	reasonGroupRetained = "GroupRetained"
	// reasonGroupShrunk: the shard has accepted a smaller size.
	reasonGroupShrunk = "GroupShrunk"
	// reasonInstancesReplaced: the shard has accepted settings because of which it replaces
	// the instances of the group.
	reasonInstancesReplaced = "InstancesReplaced"
	// reasonDeletingGroup: the shard has accepted the deletion of the group.
	reasonDeletingGroup = "DeletingGroup"
	// reasonGroupDeleted: the shard has confirmed that the group is deleted.
	reasonGroupDeleted = "GroupDeleted"
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

// recordReachable records that the shard of written is connected again.
func (c *Controller) recordReachable(before *v1beta1.NstanceShardGroupStatus, written *v1beta1.NstanceShardGroup) {
	if meta.IsStatusConditionFalse(before.Conditions, v1beta1.ConditionShardReachable) &&
		meta.IsStatusConditionTrue(written.Status.Conditions, v1beta1.ConditionShardReachable) {
		controller.Record(c.recorder, written, reasonShardReachable, "Connect",
			fmt.Sprintf("shard %q is connected again", written.Spec.Shard))
	}
}
