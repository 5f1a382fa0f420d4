// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package change_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/change"
	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/plugintest"
)

// pool returns a pool with a policy, which may be nil.
func pool(policy *v1beta1.RotationPolicy) *v1beta1.NstanceMachinePool {
	found := &plugintest.AtRest().Pools.Items[0]
	found.Spec.Rotation = policy
	return found
}

// Each change of a pool is one field of its policy, and says what follows from it.
func TestChangesOfAPool(t *testing.T) {
	now := plugintest.Now.Add(time.Millisecond)
	policy := &v1beta1.RotationPolicy{Canary: 1}
	resumed, err := change.Resume(pool(policy))
	require.NoError(t, err)
	for name, test := range map[string]struct {
		got         change.Change
		field, text string
		messages    int
	}{
		"rotate":                    {change.Rotate(pool(policy), now), `"after":"2026-01-02T03:04:06Z"`, "from before 2026-01-02T03:04:06Z are outdated", 1},
		"rotate at a full second":   {change.Rotate(pool(policy), plugintest.Now), `"after":"2026-01-02T03:04:05Z"`, "from before 2026-01-02T03:04:05Z", 1},
		"rotate without a policy":   {change.Rotate(pool(nil), now), `"after":"2026-01-02T03:04:06Z"`, "has the default policy now", 2},
		"rotate while it is paused": {change.Rotate(pool(&v1beta1.RotationPolicy{Paused: ptr.To(true)}), now), `"after":"2026-01-02T03:04:06Z"`, "kubectl nstance rotate workers --resume", 2},
		"pause":                     {change.Pause(pool(policy)), `"paused":true`, "No further instance of pool workers is replaced", 1},
		"pause without a policy":    {change.Pause(pool(nil)), `"paused":true`, "has one now", 2},
		"resume":                    {resumed, `"paused":false`, "goes on", 1},
	} {
		t.Run(name, func(t *testing.T) {
			assert.JSONEq(t, `{"metadata":{"uid":"pool-uid"},"spec":{"rotation":{`+test.field+`}}}`, string(test.got.Patch()))
			assert.Equal(t, `kubectl patch nstancemachinepool workers -n nstance-system --type=merge -p '{"spec":{"rotation":{`+test.field+`}}}'`, test.got.Command)
			assert.Len(t, test.got.Messages, test.messages)
			var out bytes.Buffer
			require.NoError(t, change.Print(&out, test.got))
			assert.Contains(t, out.String(), test.text)
			assert.Contains(t, out.String(), test.got.Command)
		})
	}
	_, err = change.Resume(pool(nil))
	require.EqualError(t, err, "pool workers has no spec.rotation, and so its rotation is not paused")
}

// Only a Node of an instance of a pool is changed, and no Node that has its name later.
func TestChangesOfANode(t *testing.T) {
	s := plugintest.AtRest()
	subject := s.Locate("a1")
	subject.Node.UID = "node-uid"
	got, err := change.Replace(subject)
	require.NoError(t, err)
	assert.JSONEq(t, `{"metadata":{"uid":"node-uid","annotations":{"nstance.dev/remediate-instance":""}}}`, string(got.Patch()))
	assert.Equal(t, "kubectl annotate node a1 nstance.dev/remediate-instance=", got.Command)
	assert.Equal(t, []string{"workers", "a1"}, []string{got.Pool, got.Node})
	got, err = change.Keep(subject)
	require.NoError(t, err)
	assert.JSONEq(t, `{"metadata":{"uid":"node-uid","annotations":{"nstance.dev/remediate-instance":null}}}`, string(got.Patch()))
	assert.Equal(t, "kubectl annotate node a1 nstance.dev/remediate-instance-", got.Command)
	for name, other := range map[string]objects.Subject{
		"no Node": {Pool: subject.Pool}, "no pool": {Node: subject.Node}, "nothing": {},
	} {
		_, err := change.Replace(other)
		assert.Error(t, err, name)
	}
}

// The end of a rotation is known only from a condition about the pool as it was changed.
func TestRolloutOf(t *testing.T) {
	now := metav1.Now()
	for name, test := range map[string]struct {
		status     metav1.ConditionStatus
		reason     string
		generation int64
		deleted    *metav1.Time
		want       change.Rollout
	}{
		"no condition":             {"", "", 0, nil, change.Rollout{Text: "it is not known yet which instances are outdated"}},
		"of an earlier generation": {metav1.ConditionFalse, v1beta1.ReasonNotRollingOut, 1, nil, change.Rollout{Text: "it is not known yet which instances are outdated"}},
		"it goes on":               {metav1.ConditionTrue, v1beta1.ReasonRollingOut, 2, nil, change.Rollout{Text: "RollingOut: message"}},
		"it waits for a window":    {metav1.ConditionTrue, v1beta1.ReasonOutsideWindow, 2, nil, change.Rollout{Text: "OutsideWindow: message"}},
		"it has failed":            {metav1.ConditionTrue, v1beta1.ReasonRotationFailed, 3, nil, change.Rollout{Text: "RotationFailed: message", Stopped: true}},
		"it is paused":             {metav1.ConditionTrue, v1beta1.ReasonPaused, 2, nil, change.Rollout{Text: "Paused: message", Stopped: true}},
		"an older server":          {metav1.ConditionFalse, v1beta1.ReasonUnsupportedByServer, 2, nil, change.Rollout{Text: "UnsupportedByServer: message", Stopped: true}},
		"the end":                  {metav1.ConditionFalse, v1beta1.ReasonNotRollingOut, 2, nil, change.Rollout{Text: "all instances are up to date", Ended: true}},
		"the end of the pool":      {metav1.ConditionFalse, v1beta1.ReasonNotRollingOut, 2, &now, change.Rollout{Text: "the pool is being deleted", Stopped: true}},
	} {
		t.Run(name, func(t *testing.T) {
			changed := pool(nil)
			changed.DeletionTimestamp = test.deleted
			if test.status != "" {
				changed.Status.Conditions = append(changed.Status.Conditions, metav1.Condition{
					Type: v1beta1.ConditionRollingOut, Status: test.status, Reason: test.reason, Message: "message", ObservedGeneration: test.generation,
				})
			}
			assert.Equal(t, test.want, change.RolloutOf(changed, 2))
		})
	}
}
