// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

func TestEffective(t *testing.T) {
	c := newConfig(t)
	c.LoadBalancers = map[string]provider.LoadBalancer{"web": {Key: "web"}}
	types := c.Shard.Infra.InstanceTypes
	labels := func(labels map[string]any) map[string]any { return map[string]any{"labels": labels} }
	tests := []struct {
		name, group string
		record      instance.Record
		change      func(*groups.Group)
	}{
		{"a record without overrides", "main", instance.Record{}, func(*groups.Group) {}},
		{"the group's own template", "main", instance.Record{Template: "worker"}, func(*groups.Group) {}},
		{"vars go over the group's", "main", instance.Record{Vars: map[string]string{"from": "record", "new": "1"}}, func(g *groups.Group) {
			g.Vars = map[string]string{"defaults": "yes", "worker": "yes", "main": "yes", "from": "record", "new": "1"}
		}},
		{"an instance type", "main", instance.Record{InstanceType: "r7i.large"}, func(g *groups.Group) {
			g.InstanceType, g.Type = "r7i.large", types["r7i.large"]
		}},
		{"a subnet pool", "main", instance.Record{SubnetPool: "extra"}, func(g *groups.Group) {
			g.SubnetPools = []string{"extra"}
		}},
		{"load balancers, without those that are gone", "main", instance.Record{LoadBalancers: []string{"web", "gone"}}, func(g *groups.Group) {
			g.LoadBalancers = []string{"web"}
		}},
		{"another template, with what the group has of its own", "main", instance.Record{Template: "gpu"}, func(g *groups.Group) {
			g.Template, g.Kind, g.Arch = "gpu", "gpu", "arm64"
			g.InstanceType, g.Type, g.SubnetPools = "m7g.large", types["m7g.large"], []string{"gpus"}
			g.Vars = map[string]string{"defaults": "yes", "from": "gpu", "gpu": "yes", "main": "yes"}
			g.Args = labels(map[string]any{"defaults": "yes", "from": "gpu", "gpu": "yes", "main": "yes"})
			g.Userdata = c.Templates["gpu"].Userdata
			g.Files = map[string]config.File{
				"a.json": {Kind: "string", Content: map[string]any{"string": "a"}},
				"b.json": {Kind: "string", Content: map[string]any{"string": "b"}},
			}
		}},
		{"another template without values of its own", "own", instance.Record{Template: "silent"}, func(g *groups.Group) {
			g.Template, g.Kind = "silent", "sil"
			g.Vars = map[string]string{"defaults": "yes", "from": "own"}
			g.Args = map[string]any{"labels": map[string]any{"defaults": "yes", "from": "own"}, "annotations": map[string]any{"own": "yes"}}
		}},
		{"the group's own values win over another template", "own", instance.Record{Template: "gpu", InstanceType: "r7g.large"}, func(g *groups.Group) {
			g.Template, g.Kind, g.Arch = "gpu", "gpu", "arm64"
			g.InstanceType, g.Type = "r7g.large", types["r7g.large"]
			g.Vars = map[string]string{"defaults": "yes", "gpu": "yes", "from": "own"}
			g.Args = map[string]any{"labels": map[string]any{"defaults": "yes", "gpu": "yes", "from": "own"}, "annotations": map[string]any{"own": "yes"}}
			g.Userdata = c.Templates["gpu"].Userdata
			g.Files = map[string]config.File{
				"a.json": {Kind: "string", Content: map[string]any{"string": "a"}},
				"b.json": {Kind: "string", Content: map[string]any{"string": "b"}},
			}
		}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			group := newGroup(t, c, tc.group)
			want := *group
			tc.change(&want)
			got, err := Effective(c, group, &tc.record)
			require.NoError(t, err)
			if diff := cmp.Diff(&want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(newGroup(t, c, tc.group), group); diff != "" {
				t.Errorf("the group itself is changed (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEffectiveRejects(t *testing.T) {
	c := newConfig(t)
	tests := []struct {
		name, group, want string
		record            instance.Record
	}{
		{"unknown template", "main", `template: Invalid value: "knz": unknown template, known are "gpu", "silent", "worker"`, instance.Record{Template: "knz", SubnetPool: "none"}},
		{"instance type of another arch", "main", `instance_type: Invalid value: "t4g.large": no instance type of architecture "amd64", known are "c7i.2xlarge"`, instance.Record{InstanceType: "t4g.large"}},
		{"the group's own type does not fit the template", "own", `instance_type: Invalid value: "c7i.large": no instance type of architecture "arm64"`, instance.Record{Template: "gpu"}},
		{"unknown pool", "main", `subnet_pool: Invalid value: "none": unknown subnet pool, known are "default", "extra", "gpus"`, instance.Record{SubnetPool: "none"}},
		{"all at once", "main", `[subnet_pool: Invalid value: "none": unknown subnet pool, known are "default", "extra", "gpus", instance_type: Invalid value: "huge"`, instance.Record{SubnetPool: "none", InstanceType: "huge"}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Effective(c, newGroup(t, c, tc.group), &tc.record)
			if got != nil || err == nil || len(err.Error()) < len(tc.want) || err.Error()[:len(tc.want)] != tc.want {
				t.Errorf("got  %v\nwant %s", err, tc.want)
			}
		})
	}
}

// TestSpecOfAnOnDemandInstance: the overrides in its record are in the spec.
func TestSpecOfAnOnDemandInstance(t *testing.T) {
	c := newConfig(t)
	p, nonces := newProvisioner(t, c)
	record := &instance.Record{
		ID: instanceID, Tenant: "default", Group: "main", OnDemand: true, Template: "gpu",
		InstanceType: "r7g.large", SubnetPool: "extra", Vars: map[string]string{"from": "record"},
		CreatedAt: time.Unix(1, 0),
	}
	group := *newGroup(t, c, "main")
	group.Args = labelled("{{.Vars.from}} {{.Instance.Type}}")
	spec, err := p.Spec(t.Context(), &group, record, "subnet-c")
	require.NoError(t, err)
	want := provider.Spec{
		ID: instanceID, Group: record.Key(), Origin: instance.Origin{OnDemand: true}, Template: "gpu", Kind: "gpu", CreatedAt: time.Unix(1, 0),
		Type: c.Shard.Infra.InstanceTypes["r7g.large"], Subnet: "subnet-c",
		Args: map[string]any{"labels": map[string]any{
			"defaults": "yes", "from": "gpu", "gpu": "yes", "rendered": "record r7g.large",
		}},
		Userdata: []byte("gpu " + instanceID + " " + nonces.signed[0]),
	}
	if diff := cmp.Diff(want, spec); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	record.InstanceType = "m7i.large"
	if _, err := p.Spec(t.Context(), &group, record, "subnet-c"); err == nil {
		t.Error("an override that is not allowed gives a spec")
	}
}

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
