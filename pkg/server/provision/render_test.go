// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

// labelled returns arguments with one label.
func labelled(value string) map[string]any {
	return map[string]any{"labels": map[string]any{"rendered": value}}
}

func TestRenderArgs(t *testing.T) {
	var f facts
	f.Instance.ID, f.Vars = "i-1", map[string]string{"role": "db", "template": "{{.Instance.ID}}"}
	args := func(role, id string) map[string]any {
		return map[string]any{
			"text": role,
			"object": map[string]any{
				"deep":        map[string]any{"text": role + "-" + id},
				"{{.Vars.x}}": "keys stay",
			},
			"array":  []any{role, []any{id}, map[string]any{"text": id}, 1.5, true, nil},
			"number": 3.0, "boolean": false, "null": nil, "empty": "", "none": map[string]any{}, "nothing": []any{},
		}
	}
	given := args("{{.Vars.role}}", "{{.Instance.ID}}")
	got, err := renderArgs(given, f)
	require.NoError(t, err)
	if diff := cmp.Diff(args("db", "i-1"), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(args("{{.Vars.role}}", "{{.Instance.ID}}"), given); diff != "" {
		t.Errorf("the arguments themselves are changed (-want +got):\n%s", diff)
	}

	// A var is a value, not a template.
	got, err = renderArgs(labelled("{{.Vars.template}}"), f)
	require.NoError(t, err)
	if diff := cmp.Diff(labelled("{{.Instance.ID}}"), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRenderArgsNamesTheArgument(t *testing.T) {
	args := map[string]any{"b": "{{.Vars.x}}", "a": map[string]any{"list": []any{"", map[string]any{"x": "{{.Vars.x}}"}}}}
	for range 20 {
		_, err := renderArgs(args, facts{})
		want := `render a template: template: args.a.list[1].x:1:7: executing "args.a.list[1].x" at <.Vars.x>: map has no entry for key "x"`
		if err == nil || err.Error() != want {
			t.Fatalf("got  %v\nwant %s", err, want)
		}
	}
}
