// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dashboard

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/drains"
	"nstance.dev/operator/pkg/plugin/status"
)

// tone is how much attention something needs. The page shows it by a symbol and a color,
// always beside words.
type tone string

const (
	toneOK      tone = "ok"
	toneBusy    tone = "busy"
	toneUnknown tone = "unknown"
	toneWarning tone = "warning"
	toneBad     tone = "bad"
	// toneWanted is that of an instance that is wanted and not reported.
	toneWanted tone = "wanted"
)

// badge is a state.
type badge struct {
	Tone tone
	Text string
}

// severity orders tones.
var severity = map[tone]int{toneOK: 0, toneBusy: 1, toneUnknown: 2, toneWarning: 3, toneBad: 4}

// worse returns the tone that needs more attention.
func worse(a, b tone) tone {
	if severity[b] > severity[a] {
		return b
	}
	return a
}

// reasonTones are the reasons of conditions that are progress, or that nothing but a person
// ends. All others are warnings.
var reasonTones = map[string]tone{
	v1beta1.ReasonScaling:           toneBusy,
	v1beta1.ReasonWaiting:           toneBusy,
	v1beta1.ReasonProvisioning:      toneBusy,
	v1beta1.ReasonStabilizing:       toneBusy,
	v1beta1.ReasonMinReady:          toneBusy,
	v1beta1.ReasonInstanceNotReady:  toneBusy,
	v1beta1.ReasonRemoving:          toneBusy,
	v1beta1.ReasonDraining:          toneBusy,
	v1beta1.ReasonDeleting:          toneBusy,
	v1beta1.ReasonNotSynced:         toneBusy,
	v1beta1.ReasonWaitingForMachine: toneBusy,

	v1beta1.ReasonShardUnreachable:           toneBad,
	v1beta1.ReasonWorkloadClusterUnreachable: toneBad,
	v1beta1.ReasonWrongShard:                 toneBad,
	v1beta1.ReasonOtherCluster:               toneBad,
	v1beta1.ReasonDrainBlocked:               toneBad,
	v1beta1.ReasonServerDeleted:              toneBad,
}

// conditionsTone returns the tone of the conditions that are not as they should be.
func conditionsTone(conditions []status.Condition) tone {
	result := toneOK
	for _, condition := range conditions {
		of, known := reasonTones[condition.Reason]
		switch {
		case known:
		case condition.Status == string(metav1.ConditionUnknown):
			of = toneUnknown
		default:
			of = toneWarning
		}
		result = worse(result, of)
	}
	return result
}

// instanceTone returns the tone of the state of an instance.
func instanceTone(instance *status.Instance) tone {
	switch instance.State {
	case status.StateRunning:
		return toneOK
	case status.StateUnknown:
		return toneUnknown
	case status.StateNoNode, status.StateNotReady:
		return toneWarning
	case status.StateAmbiguous, string(drains.Blocked):
		return toneBad
	}
	return toneBusy
}
