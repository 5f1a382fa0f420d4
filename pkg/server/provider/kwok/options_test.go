// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package kwok_test

import (
	_ "embed"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// configuration has every option of the provider.
//
//go:embed testdata/config.jsonc
var configuration string

// parse reads configuration with old replaced by new.
func parse(t *testing.T, old, replacement string) (*config.Config, error) {
	t.Helper()
	if !strings.Contains(configuration, old) {
		t.Fatalf("the configuration has no %s", old)
	}
	return config.Parse([]byte(strings.Replace(configuration, old, replacement, 1)), provider.Registry{kwok.Name: kwok.ReadOptions})
}

// mustParse is parse for a valid configuration.
func mustParse(t *testing.T, old, replacement string) *config.Config {
	t.Helper()
	c, err := parse(t, old, replacement)
	require.NoError(t, err)
	return c
}

func TestEveryOptionIsRead(t *testing.T) {
	infra := mustParse(t, "", "").Shard.Infra
	options := infra.Options.(*kwok.Options)
	want := &kwok.Options{
		Kubeconfig: "/etc/kubeconfig", BootDelay: 1500 * time.Millisecond,
		InstanceTypes: infra.InstanceTypes, SubnetCapacity: map[string]int32{"subnet-a": 10},
	}
	if diff := cmp.Diff(want, options); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	types := provider.Catalogue{}
	for _, name := range []string{"tiny", "c7i.large", "m7g.4xlarge"} {
		types[name] = infra.InstanceTypes[name]
	}
	wantTypes := provider.Catalogue{
		"tiny":        {Name: "tiny", CPU: resource.MustParse("500m"), Memory: resource.MustParse("1Gi"), Arch: "arm64", Quota: ptr.To[int32](3)},
		"c7i.large":   {Name: "c7i.large", CPU: resource.MustParse("2"), Memory: resource.MustParse("4Gi"), Arch: "amd64", Quota: ptr.To[int32](0)},
		"m7g.4xlarge": {Name: "m7g.4xlarge", CPU: resource.MustParse("16"), Memory: resource.MustParse("64Gi"), Arch: "arm64"},
	}
	if diff := cmp.Diff(wantTypes, types); diff != "" || len(infra.InstanceTypes) != 33 {
		t.Errorf("of %d types (-want +got):\n%s", len(infra.InstanceTypes), diff)
	}
}

// TestInvalidOptions changes one thing of the configuration and expects its
// mistakes, and no others.
func TestInvalidOptions(t *testing.T) {
	tests := []struct{ name, old, replacement, want string }{
		{"kubeconfig", `"kubeconfig": "/etc/kubeconfig",`, ``, `shard.infra.options.kubeconfig: Required value: must not be empty`},
		{"kubeconfig in a folder that is not named", `"/etc/kubeconfig"`, `"kubeconfig"`, `shard.infra.options.kubeconfig: Invalid value: "kubeconfig": must be an absolute path`},
		{"boot delay", `"1.5s"`, `"1w"`, `shard.infra.options.boot_delay: Invalid value: "1w": must be a duration that is not negative, such as "1.5s", "2m" or "21d"`},
		{"empty duration", `"1.5s"`, `""`, `shard.infra.options.boot_delay: Invalid value: "": must be a duration`},
		{"negative boot delay", `"1.5s"`, `"-1s"`, `shard.infra.options.boot_delay: Invalid value: "-1s": must be a duration`},
		{"cpu", `"500m"`, `"0"`, `shard.infra.options.instance_types.tiny.cpu: Invalid value: "0": must be a quantity greater than zero`},
		{"memory", `"1Gi"`, `"lots"`, `shard.infra.options.instance_types.tiny.memory: Invalid value: "lots": must be a quantity greater than zero`},
		{"arch of a type that is not used", `"instance_types": {`, `"instance_types": {"x": {"cpu": "1", "memory": "1", "arch": "mips"}, `, `shard.infra.options.instance_types.x.arch: Unsupported value: "mips": supported values: "amd64", "arm64"`},
		{"name of an instance type", `"instance_types": {`, `"instance_types": {"a b": {"cpu": "1", "memory": "1", "arch": "arm64"}, `, `shard.infra.options.instance_types.a b: Invalid value: "a b": a valid label must be`},
		{"quota of an unknown type", `"tiny": 3`, `"huge": 3`, `shard.infra.options.quota.huge: Invalid value: "huge": unknown instance type, known are "c7g.2xlarge"`},
		{"negative quota", `"tiny": 3`, `"tiny": -1`, `shard.infra.options.quota.tiny: Invalid value: -1: must not be negative`},
		{"quota of an unknown market", `"tiny": 3`, `"tiny/Elsewhere": 3`, `shard.infra.options.quota.tiny/Elsewhere: Unsupported value: "Elsewhere": supported values: "Spot", "Standard"`},
		{"quota of a market of an unknown type", `"tiny": 3`, `"huge/Spot": 3`, `shard.infra.options.quota.huge/Spot: Invalid value: "huge/Spot": unknown instance type, known are "c7g.2xlarge"`},
		{"negative quota of a market", `"tiny": 3`, `"tiny/Spot": -1`, `shard.infra.options.quota.tiny/Spot: Invalid value: -1: must not be negative`},
		{"unknown market", `"args": {"annotations": {"group": "arm"}}`, `"args": {"market": "spot"}`, `groups.default.arm.args.market: Unsupported value: "spot": supported values: "Spot", "Standard"`},
		{"market of another type", `"args": {"annotations": {"group": "arm"}}`, `"args": {"market": {"a": "b"}}`, `groups.default.arm.args.market: Invalid value: {"a":"b"}: must be a string`},
		{"quota that is no number", `"tiny": 3`, `"tiny": "3"`, `shard.infra.options.quota.tiny: Invalid value: "3": must be an integer of at most 32 bits`},
		{"capacity of an unknown subnet", `"subnet-a": 10`, `"subnet-x": 10`, `shard.infra.options.subnet_capacity.subnet-x: Invalid value: "subnet-x": unknown subnet, known are "subnet-a", "subnet-b", "subnet-c"`},
		{"negative capacity", `"subnet-a": 10`, `"subnet-a": -1`, `shard.infra.options.subnet_capacity.subnet-a: Invalid value: -1: must not be negative`},
		{"capacity that is no number", `"subnet-a": 10`, `"subnet-a": "0"`, `shard.infra.options.subnet_capacity.subnet-a: Invalid value: "0": must be an integer`},
		{"argument that the provider has not", `"args": {"annotations": {"group": "arm"}}`, `"args": {"userdata": {"group": "arm"}}`, `groups.default.arm.args.userdata: Unsupported value: "userdata": supported values: "annotations", "labels", "market", "taints"`},
		{"effect of a taint", `{"annotations": {"group": "arm"}}`, `{"taints": {"group": "arm:Never"}}`, `groups.default.arm.args.taints.group: Unsupported value: "Never": supported values: "NoExecute", "NoSchedule", "PreferNoSchedule"`},
		{"value of a taint", `{"annotations": {"group": "arm"}}`, `{"taints": {"group": "a b:NoSchedule"}}`, `groups.default.arm.args.taints.group: Invalid value: "a b:NoSchedule": a valid label must be`},
		{"key of a taint", `{"annotations": {"group": "arm"}}`, `{"taints": {"a b": "NoSchedule"}}`, `groups.default.arm.args.taints.a b: Invalid value: "a b": name part must consist of`},
		{"argument of another type", `{"group": "arm"}`, `["group"]`, `groups.default.arm.args.annotations: Invalid value: ["group"]: must be an object of strings`},
		{"annotation of another type", `{"group": "arm"}`, `{"group": 7}`, `groups.default.arm.args.annotations.group: Invalid value: 7: must be a string`},
		{"key of an annotation", `{"group": "arm"}`, `{"a b": "arm"}`, `groups.default.arm.args.annotations.a b: Invalid value: "a b": name part must consist of`},
		{"key of a label", `"example.com/Role"`, `"Example.com/Role"`, `templates.worker.args.labels.Example.com/Role: Invalid value: "Example.com/Role": prefix part a lowercase RFC 1123 subdomain must consist of`},
		{"value of a label that is not rendered", `"example.com/Role": "worker"`, `"example.com/Role": "a b"`, `templates.worker.args.labels.example.com/Role: Invalid value: "a b": a valid label must be`},
		{"label of the server's own", `"example.com/Role"`, `"nstance.dev/shard"`, `templates.worker.args.labels.nstance.dev/shard: Forbidden: nstance.dev/ is the server's own`},
		{"no pools at all", `"subnet_pools": {"default": ["subnet-a", "subnet-b"], "extra": ["subnet-c"]}`, `"subnet_pools": {}`, "shard.infra.options.subnet_capacity.subnet-a: Invalid value: \"subnet-a\": unknown subnet, known are none\n" +
			"shard.subnet_pools: Required value: needs at least one subnet pool\n" +
			"shard.dynamic_subnet_pools[0]: Invalid value: \"default\": unknown subnet pool, known are none\n"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			_, err := parse(t, tc.old, tc.replacement)
			if _, invalid := errors.AsType[*config.InvalidError](err); !invalid {
				t.Fatalf("got %T %v, want an InvalidError", err, err)
			}
			// A want of one line is the only error.
			if !strings.HasPrefix(err.Error(), tc.want) || !strings.Contains(tc.want, "\n") && strings.Contains(err.Error(), "\n") {
				t.Errorf("got  %s\nwant %s", err, tc.want)
			}
		})
	}
}

func TestReplacementOfOptions(t *testing.T) {
	tests := []struct{ name, old, replacement, want string }{
		{"kubeconfig", `"/etc/kubeconfig"`, `"/x"`, `shard.infra.options.kubeconfig: Invalid value: "/x"`},
		{"boot delay", `"1.5s"`, `"2s"`, `shard.infra.options.boot_delay: Invalid value: "2s": needs a restart of the server, which runs with "1.5s"`},
		{"subnet capacity", `"subnet-a": 10`, `"subnet-a": 1`, `shard.infra.options.subnet_capacity: Invalid value: "map[subnet-a:1]"`},
		{"instance types", `"500m"`, `"1"`, ``},
		{"quota", `"tiny": 3`, `"tiny": 4`, ``},
		{"capacity of subnets", `"subnet-b"`, `"subnet-d"`, ``},
	}
	before := mustParse(t, "", "")
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			errs := before.CheckReplacement(mustParse(t, tc.old, tc.replacement))
			if tc.want == "" {
				if len(errs) != 0 {
					t.Errorf("got %v, want no error", errs)
				}
				return
			}
			if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), tc.want) {
				t.Errorf("got %v, want %s", errs, tc.want)
			}
		})
	}
}

func TestArgumentsThatNoNodeCanHave(t *testing.T) {
	object := func(value any) map[string]any { return map[string]any{"key": value} }
	tests := []struct {
		name string
		args map[string]any
		want string
	}{
		{"unknown", object("a"), `args: Unsupported value: "key": supported values: "annotations", "labels", "market", "taints"`},
		{"no taint", map[string]any{"taints": object("a:Never")}, `args.taints[key]: Unsupported value: "Never"`},
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

// TestQuotasOfMarkets are beside the quota of the type, in any order.
func TestQuotasOfMarkets(t *testing.T) {
	types := mustParse(t, `"tiny": 3`, `"tiny/Spot": 0, "tiny": 3, "tiny/Standard": 2, "c7g.large/Spot": 1`).Shard.Infra.InstanceTypes
	assert.Equal(t, ptr.To[int32](3), types["tiny"].Quota)
	assert.Equal(t, map[string]int32{"Spot": 0, "Standard": 2}, types["tiny"].MarketQuotas)
	assert.Nil(t, types["c7g.large"].Quota)
	assert.Equal(t, map[string]int32{"Spot": 1}, types["c7g.large"].MarketQuotas)
}
