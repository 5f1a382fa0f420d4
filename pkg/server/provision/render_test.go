// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/nodesettings"
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

// TestNodeSettingsAreRendered: templates see the settings of the group, of its template and of another
// template of an on-demand instance, with the group's own settings.
func TestNodeSettingsAreRendered(t *testing.T) {
	c := newConfig(t)
	settings := func(value string, most int32) nodesettings.Settings {
		return nodesettings.Settings{
			Labels: map[string]string{"of": value, value: "", "node-role.kubernetes.io/" + value: ""}, MaxPods: most,
			Taints: []nodesettings.Taint{{Key: "of", Value: value, Effect: "NoSchedule"}, {Key: value, Effect: "NoExecute"}},
		}
	}
	for name, node := range map[string]nodesettings.Settings{"worker": settings("worker", 20), "gpu": settings("gpu", 30)} {
		template := c.Templates[name]
		template.Node = node
		template.Userdata = config.Userdata{Inline: "{{.Instance.ID}} {{.Nonce}} labels={{.Node.LabelsArg}} taints={{.Node.TaintsArg \"of=var:NoSchedule,var=:NoSchedule\"}} pods={{.Node.MaxPods}} " +
			`all={{toJSON .Node.Labels}} {{toJSON .Node.Taints}}`}
		c.Templates[name] = template
	}
	group := newGroup(t, c, "main")
	group.Node = group.Node.Merge(nodesettings.Settings{Labels: map[string]string{"own": "1"}, MaxPods: 17})
	p, _ := newProvisioner(t, c)
	rendered := func(group *groups.Group, record *instance.Record) string {
		t.Helper()
		spec, err := p.Spec(t.Context(), group, record, "subnet-a")
		require.NoError(t, err)
		_, text, _ := strings.Cut(string(spec.Userdata), " labels=")
		return text
	}
	assert.Equal(t, `of=worker,own=1,worker= taints=of=worker:NoSchedule,worker=:NoExecute,var=:NoSchedule pods=17 `+
		`all={"node-role.kubernetes.io/worker":"","of":"worker","own":"1","worker":""} `+
		`[{"key":"of","value":"worker","effect":"NoSchedule"},{"key":"worker","effect":"NoExecute"}]`, rendered(group, newRecord()))
	record := newRecord()
	record.Template = "gpu"
	assert.Equal(t, `gpu=,of=gpu,own=1 taints=gpu=:NoExecute,of=gpu:NoSchedule,var=:NoSchedule pods=17 `+
		`all={"gpu":"","node-role.kubernetes.io/gpu":"","of":"gpu","own":"1"} `+
		`[{"key":"of","value":"gpu","effect":"NoSchedule"},{"key":"gpu","effect":"NoExecute"}]`, rendered(group, record))
	group.Node = nodesettings.Settings{}
	assert.Equal(t, ` taints=of=var:NoSchedule,var=:NoSchedule pods= all={} []`, rendered(group, newRecord()))
}
