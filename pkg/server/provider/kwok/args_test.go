// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

func TestArgumentsThatNoNodeCanHave(t *testing.T) {
	object := func(value any) map[string]any { return map[string]any{"key": value} }
	tests := []struct {
		name string
		args map[string]any
		want string
	}{
		{"unknown", object("a"), `args: Unsupported value: "key": supported values: "annotations", "labels"`},
		{"no object", map[string]any{"labels": "a"}, "args.labels: Invalid value: \"a\": must be an object"},
		{"no string", map[string]any{"annotations": object(1.5)}, "args.annotations[key]: Invalid value: 1.5: must be a string"},
		{"no label", map[string]any{"labels": object("a b")}, `args.labels: Invalid value: "a b"`},
		{"no key", map[string]any{"annotations": map[string]any{"a b": ""}}, `args.annotations: Invalid value: "a b"`},
	}
	synctest.Test(t, func(t *testing.T) {
		p := start(t, kwoktest.NewClientset(), "a")
		for _, tc := range tests {
			id := providertest.NewID(t)
			err := p.Create(t.Context(), provider.Spec{ID: id, Group: group, Type: instanceTypes["m7i.large"], Args: tc.args})
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), id) {
				t.Errorf("%s: got %v, want %s of instance %s", tc.name, err, tc.want, id)
			}
		}
		if states := p.States(group); len(states) != 0 {
			t.Errorf("instances were requested: %v", states)
		}
	})
}
