// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

func TestCommonLeavesOutWhatIsRendered(t *testing.T) {
	group := &groups.Group{
		Key: instance.GroupKey{Tenant: "default", Group: "workers"}, Settings: groups.Settings{Template: "worker"}, Kind: "knd",
		Type: provider.InstanceType{Name: "m7i.large", Arch: "amd64"},
		Args: map[string]any{
			"labels": map[string]any{"pool": "gold", "name": "{{ .Instance.ID }}", "empty": "", "half": "a-{{.Vars.b}}"},
			"name":   "{{ .Instance.ID }}",
			"plain":  []any{"a", 1.5, map[string]any{"b": true, "c": "{{.Cluster.ID}}"}},
			"list":   []any{"a", "{{ .Instance.ID }}"},
			"count":  2.0,
		},
	}
	want := provider.Spec{
		Group: group.Key, Template: "worker", Kind: "knd", Type: group.Type,
		Args: map[string]any{
			"labels": map[string]any{"pool": "gold", "empty": ""},
			"plain":  []any{"a", 1.5, map[string]any{"b": true}},
			"count":  2.0,
		},
	}
	if diff := cmp.Diff(want, Common(group)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(group.Args["labels"].(map[string]any)) != 4 {
		t.Errorf("the group's arguments are now %v", group.Args)
	}
	if got := Common(&groups.Group{}); len(got.Args) != 0 {
		t.Errorf("without arguments there are %v", got.Args)
	}
}
