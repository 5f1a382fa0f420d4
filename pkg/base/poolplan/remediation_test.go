// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolplan

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/remediation"
)

// A percentage is rounded down, and allows one in any case. A number is taken as it is.
func TestRemediationNumbers(t *testing.T) {
	percent, number := func(text string) *intstr.IntOrString { return ptr.To(intstr.FromString(text)) }, func(n int32) *intstr.IntOrString { return ptr.To(intstr.FromInt32(n)) }
	for name, test := range map[string]struct {
		unhealthy, inFlight      *intstr.IntOrString
		instances                int32
		wantLimit, wantInFlights int
	}{
		"unset":              {nil, nil, 14, 2, 2},
		"unset, and few":     {nil, nil, 4, 1, 1},
		"unset, and none":    {nil, nil, 0, 1, 1},
		"40 %":               {percent("40%"), nil, 14, 5, 5},
		"numbers":            {number(7), number(3), 14, 7, 3},
		"none":               {number(0), nil, 14, 0, 0},
		"10 % in flight":     {number(7), percent("10%"), 29, 7, 2},
		"10 % of a few":      {number(7), percent("10%"), 3, 7, 1},
		"many, and too many": {percent("100%"), number(1 << 30), 10, 10, v1beta1.MaxReplicas},
	} {
		t.Run(name, func(t *testing.T) {
			policy := RemediationPolicy(&v1beta1.RemediationPolicy{
				TriggerIf: v1beta1.RemediationTriggerIf{UnhealthyLessThanOrEqualTo: test.unhealthy}, MaxInFlight: test.inFlight,
			}, test.instances)
			assert.Equal(t, test.wantLimit, policy.Limit)
			assert.Equal(t, test.wantInFlights, policy.MaxInFlight)
		})
	}
}

func TestRemediationChecks(t *testing.T) {
	policy := RemediationPolicy(&v1beta1.RemediationPolicy{Checks: v1beta1.RemediationChecks{
		UnhealthyNodeConditions:   []v1beta1.UnhealthyNodeCondition{{Type: "Ready", Status: "Unknown", TimeoutSeconds: 300}},
		NodeStartupTimeoutSeconds: 1200,
	}}, 10)
	since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	assert.Equal(t, remediation.Policy{
		Checks: []remediation.Check{{Type: "Ready", Status: "Unknown", Timeout: 5 * time.Minute}}, StartupTimeout: 20 * time.Minute, Limit: 2, MaxInFlight: 2,
	}, policy)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-7"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, LastTransitionTime: metav1.NewTime(since)},
	}}}
	assert.Equal(t, &remediation.Node{Name: "worker-7", Conditions: []remediation.Condition{{Type: "Ready", Status: "Unknown", Since: since}}}, HealthOf(node))
}

// The example of docs/reference.md#remediation does what the text below it says.
func TestTheDocumentedRemediation(t *testing.T) {
	pool := documented(t, "Remediation")
	policy := RemediationPolicy(pool.Spec.Remediation, 5)
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	decide := func(problems ...remediation.Instance) remediation.Decision {
		instances := problems
		for n := len(problems); n < 5; n++ {
			instances = append(instances, remediation.Instance{Node: &remediation.Node{Conditions: []remediation.Condition{{Type: "Ready", Status: "True"}}}})
		}
		for i := range instances {
			instances[i].Shard, instances[i].ID, instances[i].Connected = "a", string(rune('a'+i)), true
		}
		return remediation.Decide(policy, instances, now)
	}
	ready := func(status string, minutes int) remediation.Instance {
		return remediation.Instance{Node: &remediation.Node{Conditions: []remediation.Condition{
			{Type: "Ready", Status: status, Since: now.Add(-time.Duration(minutes) * time.Minute)},
		}}}
	}
	nodeless := func(minutes int) remediation.Instance {
		return remediation.Instance{NodelessSince: now.Add(-time.Duration(minutes) * time.Minute)}
	}
	assert.Empty(t, decide(ready("Unknown", 4), ready("False", 9)).Replace)
	assert.Empty(t, decide(nodeless(19)).Replace)
	for _, long := range []remediation.Instance{ready("Unknown", 5), ready("False", 10), nodeless(20)} {
		assert.Len(t, decide(long).Replace, 1)
		assert.Len(t, decide(long, ready("Unknown", 60)).Replace, 1, "one at a time")
		three := decide(long, ready("Unknown", 60), ready("Unknown", 60))
		assert.Empty(t, three.Replace)
		assert.True(t, three.TooMany)
	}
}
