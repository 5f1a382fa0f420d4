// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nodesettings

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLabelsArg: a kubelet with a label that the NodeRestriction admission forbids does not start.
func TestLabelsArg(t *testing.T) {
	allowed := []string{
		"a", "example.com/a", "sub.example.com/a", "notkubernetes.io/a", "notk8s.io/a", "kubernetes.io",
		"kubelet.kubernetes.io/a", "sub.kubelet.kubernetes.io/a", "node.kubernetes.io/a", "sub.node.kubernetes.io/a",
		"beta.kubernetes.io/arch", "beta.kubernetes.io/instance-type", "beta.kubernetes.io/os",
		"failure-domain.beta.kubernetes.io/region", "failure-domain.beta.kubernetes.io/zone",
		"kubernetes.io/arch", "kubernetes.io/hostname", "kubernetes.io/os", "node.kubernetes.io/instance-type",
		"topology.kubernetes.io/region", "topology.kubernetes.io/zone",
	}
	forbidden := []string{
		"node-role.kubernetes.io/worker", "node-restriction.kubernetes.io/a", "kubernetes.io/role", "kubernetes.io/a", "k8s.io/a",
		"cloud.k8s.io/a", "topology.kubernetes.io/a", "beta.kubernetes.io/a", "notnode.kubernetes.io/a",
	}
	for _, key := range allowed {
		facts := Settings{Labels: map[string]string{key: "1"}}.Facts()
		assert.Equal(t, key+"=1", facts.LabelsArg())
	}
	for _, key := range forbidden {
		facts := Settings{Labels: map[string]string{key: "1"}}.Facts()
		assert.Empty(t, facts.LabelsArg(), key)
		assert.Equal(t, map[string]string{key: "1"}, facts.Labels, "templates may read it")
	}
	facts := Settings{Labels: map[string]string{"c": "", "a": "2", "b": "1", "node-role.kubernetes.io/a": ""}}.Facts()
	for range 20 {
		assert.Equal(t, "a=2,b=1,c=", facts.LabelsArg())
	}
	assert.Empty(t, Settings{}.Facts().LabelsArg())
}

// TestTaintsArg: an API server rejects a Node with two taints of the same key and effect.
func TestTaintsArg(t *testing.T) {
	facts := Settings{Taints: []Taint{{"b", "1", "NoSchedule"}, {"b", "2", "NoExecute"}, {"a", "", "NoSchedule"}}}.Facts()
	own := "a=:NoSchedule,b=1:NoSchedule,b=2:NoExecute"
	assert.Equal(t, own, facts.TaintsArg())
	for others, want := range map[string]string{
		"":                                own,
		"c=3:NoSchedule":                  own + ",c=3:NoSchedule",
		"a=4:NoSchedule":                  own,
		"a:NoSchedule":                    own,
		"a=:NoExecute":                    own + ",a=:NoExecute",
		"b=3:NoExecute,c:NoExecute,,a=b:": own + ",c:NoExecute,a=b:",
	} {
		assert.Equal(t, want, facts.TaintsArg(others), others)
	}
	nothing := Settings{}.Facts()
	assert.Empty(t, nothing.TaintsArg())
	assert.Empty(t, nothing.TaintsArg(""))
	assert.Equal(t, "c=3:NoSchedule,d:NoExecute", nothing.TaintsArg("c=3:NoSchedule,d:NoExecute"))
}

func TestFacts(t *testing.T) {
	text, err := json.Marshal(Settings{}.Facts())
	require.NoError(t, err)
	assert.JSONEq(t, `{"Labels": {}, "Taints": [], "MaxPods": ""}`, string(text))
	text, err = json.Marshal(Settings{Labels: map[string]string{"a": "1"}, Taints: []Taint{{"b", "", "NoSchedule"}}, MaxPods: 17}.Facts())
	require.NoError(t, err)
	assert.JSONEq(t, `{"Labels": {"a": "1"}, "Taints": [{"key": "b", "effect": "NoSchedule"}], "MaxPods": "17"}`, string(text))
}
