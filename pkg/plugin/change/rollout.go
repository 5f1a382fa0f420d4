// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package change

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Rollout is the progress of the rotation of a pool.
type Rollout struct {
	// Text describes the progress.
	Text string
	// Ended is set if no instance is outdated, and Stopped if the rotation does not go on until a user
	// acts.
	Ended, Stopped bool
}

// stopping are the reasons for which a rotation does not go on by itself.
var stopping = []string{
	v1beta1.ReasonPaused, v1beta1.ReasonRotationFailed, v1beta1.ReasonInvalidSchedule, v1beta1.ReasonUnsupportedByServer,
}

// RolloutOf returns the progress of the rotation of a pool, as the operator has reported it about this
// generation of the pool or a later one.
func RolloutOf(pool *v1beta1.NstanceMachinePool, generation int64) Rollout {
	condition := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionRollingOut)
	switch {
	case !pool.DeletionTimestamp.IsZero():
		return Rollout{Text: "the pool is being deleted", Stopped: true}
	case condition == nil || condition.ObservedGeneration < generation:
		return Rollout{Text: "it is not known yet which instances are outdated"}
	case condition.Status == metav1.ConditionTrue || condition.Reason != v1beta1.ReasonNotRollingOut:
		return Rollout{
			Text:    fmt.Sprintf("%s: %s", condition.Reason, cmp.Or(condition.Message, "no message")),
			Stopped: slices.Contains(stopping, condition.Reason),
		}
	}
	return Rollout{Text: "all instances are up to date", Ended: true}
}
