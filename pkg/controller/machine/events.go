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
	v1beta1.ReasonInstanceUnknown,
	v1beta1.ReasonInstanceFailed,
	v1beta1.ReasonServerDeleted,
}

// recordProblem records an event when the new status has a new problem.
func (c *Controller) recordProblem(nstanceMachine *v1beta1.NstanceMachine, status v1beta1.NstanceMachineStatus) {
	problem := controller.TurnedFalse(nstanceMachine.Status.Conditions, status.Conditions, v1beta1.ConditionReady)
	if problem == nil || !slices.Contains(eventReasons, problem.Reason) {
		return
	}
	action := "CreateInstance"
	if meta.IsStatusConditionTrue(status.Conditions, v1beta1.ConditionInstanceCreated) {
		action = "FollowInstance"
	}
	controller.Warn(c.recorder, nstanceMachine, problem.Reason, action, problem.Message)
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
