// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nodesettings

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/testing/settingstest"
	"nstance.dev/operator/pkg/testing/tier"
)

func TestRead(t *testing.T) {
	read := func(text string) (Settings, string) {
		var errs field.ErrorList
		root, err := jsonc.Parse([]byte(text), &errs)
		require.NoError(t, err)
		settings := Read(root.Object("node"))
		if len(errs) == 0 {
			return settings, ""
		}
		return settings, errs.ToAggregate().Error()
	}
	settings, problems := read(`{"node": {"labels": {"a": "1", "b": ""}, "taints": [{"key": "c", "value": "2", "effect": "NoSchedule"}, {"key": "d", "effect": "NoExecute"}], "max_pods": 17}}`)
	assert.Empty(t, problems)
	assert.Equal(t, Settings{
		Labels:  map[string]string{"a": "1", "b": ""},
		Taints:  []Taint{{Key: "c", Value: "2", Effect: "NoSchedule"}, {Key: "d", Effect: "NoExecute"}},
		MaxPods: 17,
	}, settings)
	for _, empty := range []string{`{}`, `{"node": {}}`, `{"node": {"labels": {}, "taints": [], "max_pods": 0}}`} {
		settings, problems = read(empty)
		assert.Empty(t, problems, empty)
		assert.Equal(t, Settings{}, settings, "nothing may change a hash: %s", empty)
	}
	for text, want := range map[string]string{
		`{"node": {"label": {}}}`:                                      `node.label`,
		`{"node": {"taints": [{"key": "c", "effects": "NoExecute"}]}}`: `node.taints[0].effects`,
		`{"node": {"max_pods": "17"}}`:                                 `node.max_pods`,
	} {
		_, problems = read(text)
		assert.Contains(t, problems, want)
	}
}

func TestValidate(t *testing.T) {
	many := func(n int) (settings Settings) {
		settings.Labels = map[string]string{}
		for n := range n {
			settings.Labels[fmt.Sprintf("l%d", n)] = ""
			settings.Taints = append(settings.Taints, Taint{Key: fmt.Sprintf("t%d", n), Effect: "NoExecute"})
		}
		return settings
	}
	taint := func(key, value, effect string) Settings { return Settings{Taints: []Taint{{key, value, effect}}} }
	for _, valid := range []Settings{
		{}, many(maxTaints), {MaxPods: maxPods}, taint("nstance.dev/uninitialized", "", "NoSchedule"),
		{Labels: map[string]string{"node-role.kubernetes.io/worker": ""}},
		{Taints: []Taint{{"a", "1", "NoSchedule"}, {"a", "2", "NoExecute"}, {"a", "", "PreferNoSchedule"}}},
	} {
		assert.Empty(t, valid.Validate(field.NewPath("node")), "%+v", valid)
	}
	for _, test := range []struct {
		settings Settings
		want     string
	}{
		{Settings{MaxPods: -1}, `node.max_pods: Invalid value: -1: must be between 0 and 1000, inclusive`},
		{Settings{MaxPods: 1001}, `node.max_pods: Invalid value: 1001: must be between 0 and 1000, inclusive`},
		{Settings{Labels: map[string]string{"": "1"}}, `node.labels: Invalid value: ""`},
		{Settings{Labels: map[string]string{"a b": "1"}}, `node.labels: Invalid value: "a b"`},
		{Settings{Labels: map[string]string{"a,b=c": "1"}}, `node.labels: Invalid value: "a,b=c"`},
		{Settings{Labels: map[string]string{"a": "1 --port=1"}}, `node.labels[a]: Invalid value: "1 --port=1"`},
		{Settings{Labels: map[string]string{"a": "1,b=2"}}, `node.labels[a]: Invalid value: "1,b=2"`},
		{Settings{Labels: map[string]string{"nstance.dev/group": "other"}}, `node.labels[nstance.dev/group]: Forbidden: labels that begin with nstance.dev/ tie a Node to its group`},
		{taint("", "", "NoSchedule"), `node.taints[0].key: Invalid value: ""`},
		{taint("a=b", "", "NoSchedule"), `node.taints[0].key: Invalid value: "a=b"`},
		{taint("a", "b c", "NoSchedule"), `node.taints[0].value: Invalid value: "b c"`},
		{taint("a", "", ""), `node.taints[0].effect: Unsupported value: ""`},
		{taint("a", "", "Never"), `node.taints[0].effect: Unsupported value: "Never": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"`},
		{Settings{Taints: []Taint{{"a", "1", "NoSchedule"}, {"a", "2", "NoSchedule"}}}, `node.taints[1]: Duplicate value: "a:NoSchedule"`},
		{many(maxTaints + 1), `node.taints: Too many: 33: must have at most 32 items`},
		{Settings{Labels: many(maxLabels + 1).Labels}, `node.labels: Too many: 65: must have at most 64 items`},
	} {
		err := test.settings.Validate(field.NewPath("node")).ToAggregate()
		if assert.Error(t, err, test.want) {
			assert.True(t, strings.HasPrefix(strings.TrimPrefix(err.Error(), "["), test.want), "got  %v\nwant %s", err, test.want)
		}
	}
}

func TestEveryFieldIsSentAndReceived(t *testing.T) {
	var settings Settings
	settingstest.Fill(&settings)
	data, err := proto.Marshal(settings.Message())
	require.NoError(t, err)
	message := settings.Message()
	proto.Reset(message)
	require.NoError(t, proto.Unmarshal(data, message))
	assert.Equal(t, settings, Of(message))
	assert.Nil(t, Settings{}.Message())
	assert.Equal(t, Settings{}, Of(nil))
}

func TestMerge(t *testing.T) {
	base := Settings{Labels: map[string]string{"a": "1", "b": "2"}, Taints: []Taint{{"x", "1", "NoSchedule"}, {"x", "1", "NoExecute"}}, MaxPods: 17}
	change := Settings{Labels: map[string]string{"b": "3", "c": "4"}, Taints: []Taint{{"x", "2", "NoSchedule"}, {"y", "", "NoSchedule"}}, MaxPods: 18}
	merged := Settings{
		Labels:  map[string]string{"a": "1", "b": "3", "c": "4"},
		Taints:  []Taint{{"x", "1", "NoExecute"}, {"x", "2", "NoSchedule"}, {"y", "", "NoSchedule"}},
		MaxPods: 18,
	}
	assert.Equal(t, merged, base.Merge(change))
	assert.Equal(t, base, base.Merge(Settings{}))
	assert.Equal(t, base, Settings{}.Merge(base))
	assert.Equal(t, map[string]string{"a": "1", "b": "2"}, base.Labels, "the base is shared")

	assert.Equal(t, change, merged.Beyond(base))
	assert.Equal(t, Settings{}, base.Beyond(base))

	// What the next declaration leaves out is removed, and nothing that was never declared.
	next := Settings{Labels: map[string]string{"c": "5"}, Taints: []Taint{{"x", "3", "NoSchedule"}}}
	assert.Equal(t, Settings{
		Labels: map[string]string{"a": "1", "c": "4"},
		Taints: []Taint{{"x", "1", "NoExecute"}, {"x", "2", "NoSchedule"}},
	}, merged.Without(change, next))
	assert.Equal(t, Settings{}, change.Without(change, Settings{}))
	assert.Equal(t, merged, merged.Without(Settings{}, Settings{}))
}

// Whatever base and change are: merging what is beyond the base gives the same again, no map or list is
// changed, and what was merged can be removed.
func TestMergeOfAnything(t *testing.T) {
	for _, seed := range tier.Seeds(t, 300) {
		r := rand.New(rand.NewPCG(seed, 0))
		random := func() (s Settings) {
			for n := range 4 {
				if r.IntN(2) == 0 {
					s = s.Merge(Settings{Labels: map[string]string{fmt.Sprintf("l%d", n): fmt.Sprint(r.IntN(2))}})
				}
				if r.IntN(2) == 0 {
					s.Taints = append(s.Taints, Taint{fmt.Sprintf("t%d", n/2), fmt.Sprint(r.IntN(2)), effects[n%2]})
				}
			}
			s.MaxPods = int32(r.IntN(3))
			return s
		}
		base, change := random(), random()
		before := fmt.Sprint(base, change)
		merged := base.Merge(change)
		again := base.Merge(merged.Beyond(base))
		assert.Equal(t, merged.Labels, again.Labels, seed)
		assert.ElementsMatch(t, merged.Taints, again.Taints, seed)
		assert.Equal(t, merged.MaxPods, again.MaxPods, seed)
		assert.Empty(t, merged.Validate(field.NewPath("node")), seed)
		assert.Equal(t, Settings{}, change.Without(change, Settings{}), seed)
		assert.Equal(t, before, fmt.Sprint(base, change), seed)
	}
}
