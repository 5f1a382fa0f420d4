// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// eventReasons are the reasons of the condition Ready for which an event is
// recorded: those that need attention.
var eventReasons = []string{
	v1beta1.ReasonUnknownShard,
	v1beta1.ReasonNoShard,
	v1beta1.ReasonShardUnreachable,
	v1beta1.ReasonWrongShard,
	v1beta1.ReasonOtherCluster,
	v1beta1.ReasonInstanceRefused,
	v1beta1.ReasonOutOfCapacity,
	v1beta1.ReasonInstanceUnknown,
	v1beta1.ReasonInstanceFailed,
	v1beta1.ReasonProviderError,
	v1beta1.ReasonServerDeleted,
}

// reasonInstanceDeleted is the reason of the event for an instance whose deletion is
// wanted.
const reasonInstanceDeleted = "InstanceDeleted"

// reasonDeletingInstance is the reason of the event for an instance whose deletion the shard
// has accepted.
const reasonDeletingInstance = "DeletingInstance"

// wantedReasons are the reasons of shards for deletions that follow from a configuration or
// a request. The other reasons, such as unhealthy, are problems of an instance.
var wantedReasons = []string{"scale-down", "requested", "config-drift", "expired"}

// recordProblem records an event when the new status has a new problem.
func (c *Controller) recordProblem(observed observation, status v1beta1.NstanceMachineStatus) {
	nstanceMachine := observed.nstanceMachine
	problem := controller.TurnedFalse(nstanceMachine.Status.Conditions, status.Conditions, v1beta1.ConditionReady)
	if problem == nil || !slices.Contains(eventReasons, problem.Reason) {
		return
	}
	action := "CreateInstance"
	if meta.IsStatusConditionTrue(status.Conditions, v1beta1.ConditionInstanceCreated) {
		action = "FollowInstance"
	}
	if problem.Reason == v1beta1.ReasonServerDeleted && c.deletionWanted(observed) {
		controller.Record(c.recorder, nstanceMachine, reasonInstanceDeleted, action, problem.Message)
		return
	}
	controller.Warn(c.recorder, nstanceMachine, problem.Reason, action, problem.Message)
}

// deletionWanted reports whether the shard deletes the instance because that was wanted:
// it reports such a reason, or the pool has selected the instance, or is being deleted on
// the shard.
func (c *Controller) deletionWanted(observed observation) bool {
	if observed.notice != nil && observed.notice.Reason != "" {
		return slices.Contains(wantedReasons, observed.notice.Reason)
	}
	if !observed.poolMember {
		return false
	}
	scale, err := c.observePoolScale(observed)
	if err != nil || scale.pool == nil {
		return false
	}
	if !scale.pool.DeletionTimestamp.IsZero() || slices.Contains(scale.reported.RemoveFirst, observed.instanceID) {
		return true
	}
	return slices.ContainsFunc(scale.groups, func(group *v1beta1.NstanceShardGroup) bool {
		return string(group.Spec.Shard) == observed.shardID &&
			(!group.DeletionTimestamp.IsZero() || slices.Contains(group.Spec.RemoveFirst, observed.instanceID))
	})
}

// recordAmbiguity records an event when more than one Node begins to match.
func (c *Controller) recordAmbiguity(nstanceMachine *v1beta1.NstanceMachine, status v1beta1.NstanceMachineStatus, nodes []*corev1.Node, state *syncState) {
	ambiguous := len(nodes) > 1
	if ambiguous && !state.ambiguous {
		controller.Warn(c.recorder, nstanceMachine, v1beta1.ReasonAmbiguousProviderID, "MatchNode",
			fmt.Sprintf("provider id %q matches %d Nodes", status.ProviderID, len(nodes)))
	}
	state.ambiguous = ambiguous
}
