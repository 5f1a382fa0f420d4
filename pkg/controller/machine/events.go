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

// reported are the reasons for which a machine that is not ready gets an event:
// the ones that somebody has to do something about.
var reported = []string{
	v1beta1.ReasonUnknownShard,
	v1beta1.ReasonNoShard,
	v1beta1.ReasonShardUnreachable,
	v1beta1.ReasonInstanceRefused,
	v1beta1.ReasonInstanceFailed,
	v1beta1.ReasonServerDeleted,
}

// recordTrouble reports what the new status says for the first time.
func (c *Controller) recordTrouble(machine *v1beta1.NstanceMachine, status v1beta1.NstanceMachineStatus) {
	trouble := controller.TurnedFalse(machine.Status.Conditions, status.Conditions, v1beta1.ConditionReady)
	if trouble == nil || !slices.Contains(reported, trouble.Reason) {
		return
	}
	action := "CreateInstance"
	if meta.IsStatusConditionTrue(status.Conditions, v1beta1.ConditionInstanceCreated) {
		action = "FollowInstance"
	}
	controller.Warn(c.recorder, machine, trouble.Reason, action, trouble.Message)
}

// recordAmbiguity reports that it is not clear which Node is meant, once.
func (c *Controller) recordAmbiguity(machine *v1beta1.NstanceMachine, status v1beta1.NstanceMachineStatus, nodes []*corev1.Node, recalled *memory) {
	ambiguous := len(nodes) > 1
	if ambiguous && !recalled.ambiguous {
		controller.Warn(c.recorder, machine, v1beta1.ReasonAmbiguousProviderID, "MatchNode",
			fmt.Sprintf("provider id %q matches %d Nodes", status.ProviderID, len(nodes)))
	}
	recalled.ambiguous = ambiguous
}
