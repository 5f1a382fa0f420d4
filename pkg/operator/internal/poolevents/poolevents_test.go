// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolevents

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// withCondition returns a pool with a condition, which has the message of its reason.
func withCondition(kind string, status metav1.ConditionStatus, reason string) *v1beta1.NstanceMachinePool {
	pool := &v1beta1.NstanceMachinePool{}
	if kind != "" {
		meta.SetStatusCondition(&pool.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: reason, Message: "message"})
	}
	return pool
}

func recorded(before, written *v1beta1.NstanceMachinePool) (list []string) {
	recorder := events.NewFakeRecorder(10)
	Record(recorder, before, written, func() string { return "lowered by kubectl" })
	close(recorder.Events)
	for event := range recorder.Events {
		list = append(list, event)
	}
	return list
}

// Each change is recorded once, and what was so before is not.
func TestRecord(t *testing.T) {
	type state struct {
		status metav1.ConditionStatus
		reason string
	}
	none := state{}
	for name, test := range map[string]struct {
		kind          string
		before, after state
		want          []string
	}{
		"a user can resolve it": {v1beta1.ConditionReady, none, state{metav1.ConditionFalse, v1beta1.ReasonUnknownShard}, []string{"Warning UnknownShard message"}},
		"it will pass":          {v1beta1.ConditionReady, none, state{metav1.ConditionFalse, v1beta1.ReasonNotSynced}, nil},
		"another problem": {
			v1beta1.ConditionReady, state{metav1.ConditionFalse, v1beta1.ReasonUnknownShard},
			state{metav1.ConditionFalse, v1beta1.ReasonGroupInUse}, []string{"Warning GroupInUse message"},
		},
		"a scale-down waits":      {v1beta1.ConditionScalingDown, none, state{metav1.ConditionTrue, v1beta1.ReasonStabilizing}, []string{"Normal ScaleDownDelayed message"}},
		"a scale-down is blocked": {v1beta1.ConditionScalingDown, none, state{metav1.ConditionTrue, v1beta1.ReasonShardUnreachable}, []string{"Warning ScaleDownBlocked message"}},
		"a scale-down goes on":    {v1beta1.ConditionScalingDown, none, state{metav1.ConditionTrue, v1beta1.ReasonRemoving}, nil},
		"the first capacity":      {v1beta1.ConditionCapacityAvailable, none, state{metav1.ConditionTrue, v1beta1.ReasonNoShortfall}, nil},
		"a shortfall":             {v1beta1.ConditionCapacityAvailable, none, state{metav1.ConditionFalse, v1beta1.ReasonZoneOutOfStock}, []string{"Warning ZoneOutOfStock message"}},
		"a shortfall ends": {
			v1beta1.ConditionCapacityAvailable, state{metav1.ConditionFalse, v1beta1.ReasonMoved}, state{metav1.ConditionTrue, v1beta1.ReasonNoShortfall},
			[]string{"Normal NoShortfall no shard has a shortfall, and none has lent instances"},
		},
		"a fallback": {v1beta1.ConditionPreferredInstances, none, state{metav1.ConditionFalse, v1beta1.ReasonFallback}, []string{"Warning Fallback message"}},
		"a fallback ends": {
			v1beta1.ConditionPreferredInstances, state{metav1.ConditionFalse, v1beta1.ReasonFallback}, state{metav1.ConditionTrue, v1beta1.ReasonPreferred},
			[]string{"Normal Preferred all instances are of the candidates that they should be of"},
		},
		"a shard with a fallback is away": {
			v1beta1.ConditionPreferredInstances, state{metav1.ConditionFalse, v1beta1.ReasonFallback}, state{metav1.ConditionUnknown, v1beta1.ReasonShardUnreachable}, nil,
		},
		"the first preferred instances": {v1beta1.ConditionPreferredInstances, none, state{metav1.ConditionTrue, v1beta1.ReasonPreferred}, nil},
		"a rotation begins":             {v1beta1.ConditionRollingOut, none, state{metav1.ConditionTrue, v1beta1.ReasonRollingOut}, []string{"Normal RotationStarted message"}},
		"a rotation begins and fails": {
			v1beta1.ConditionRollingOut, none, state{metav1.ConditionTrue, v1beta1.ReasonRotationFailed},
			[]string{"Normal RotationStarted message", "Warning RotationFailed message"},
		},
		"a rotation ends": {
			v1beta1.ConditionRollingOut, state{metav1.ConditionTrue, v1beta1.ReasonRollingOut}, state{metav1.ConditionFalse, v1beta1.ReasonNotRollingOut},
			[]string{"Normal RotationFinished all instances are up to date"},
		},
		"too many Nodes are unhealthy": {v1beta1.ConditionRemediating, none, state{metav1.ConditionTrue, v1beta1.ReasonTooManyUnhealthy}, []string{"Warning TooManyUnhealthy message"}},
		"shards are connected again": {
			v1beta1.ConditionShardsReachable, state{metav1.ConditionFalse, v1beta1.ReasonShardUnreachable}, state{metav1.ConditionTrue, "Reachable"},
			[]string{"Normal ShardsReachable all shards of the pool are connected again"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			kind := test.kind
			if test.before == none {
				kind = ""
			}
			before, after := withCondition(kind, test.before.status, test.before.reason), withCondition(test.kind, test.after.status, test.after.reason)
			assert.Equal(t, test.want, recorded(before, after))
			assert.Empty(t, recorded(after, after.DeepCopy()), "nothing has changed")
		})
	}
}

// Only a number that becomes smaller is looked up, because that costs a request.
func TestRecordScaling(t *testing.T) {
	sized := func(size int32) *v1beta1.NstanceMachinePool {
		return &v1beta1.NstanceMachinePool{Status: v1beta1.NstanceMachinePoolStatus{DesiredReplicas: ptr.To(size)}}
	}
	assert.Equal(t, []string{"Normal Scaled from 3 to 5 instances"}, recorded(sized(3), sized(5)))
	assert.Equal(t, []string{"Normal Scaled from 5 to 3 instances; lowered by kubectl"}, recorded(sized(5), sized(3)))
	assert.Empty(t, recorded(&v1beta1.NstanceMachinePool{}, sized(3)), "it was not known before")
}
