// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/instance"
)

// example has every key.
const example = `{
	// Comments and trailing commas are fine.
	"cluster": {"id": "prod"},
	"shard": {
		"id": "us-west-2a",
		"infra": {
			"provider": "kwok",
			"region": "us-west-2",
			"zone": "us-west-2a",
			"options": {
				"kubeconfig": "kubeconfig",
				"boot_delay": "1.5s",
				"instance_types": {"tiny": {"cpu": "500m", "memory": "1Gi", "arch": "arm64"}},
				"quota": {"tiny": 3, "c7i.large": 0},
			},
		},
		"bind": {"health_addr": "0.0.0.0:8990", "operator_addr": "[::]:8993"},
		"tls": {"ca": "pki/ca.crt", "cert": "/etc/tls.crt", "key": "tls.key"},
		"subnet_pools": {"default": ["subnet-a", "subnet-b"], "extra": ["subnet-c"]},
		"dynamic_subnet_pools": ["default"],
	},
	"templates": {
		"worker": {
			"kind": "knd", "arch": "amd64", "instance_type": "m7i.large",
			"subnet_pool": "default", "vars": {"role": "worker"},
		},
		"bare": {"kind": "bar", "arch": "arm64", "size": 0},
	},
	"groups": {
		"default": {
			"main": {"template": "worker"},
			"arm": {"template": "bare", "size": 3, "instance_type": "tiny", "subnet_pool": "extra", "vars": {"a": "b"}},
		},
		"empty": {},
	},
}`

func TestParseReadsEveryKey(t *testing.T) {
	got, err := Parse([]byte(example), "/config")
	if err != nil {
		t.Fatal(err)
	}
	types := defaultInstanceTypes()
	types["tiny"] = instance.Type{Name: "tiny", CPU: resource.MustParse("500m"), Memory: resource.MustParse("1Gi"), Arch: "arm64", Quota: ptr.To[int32](3)}
	none := types["c7i.large"]
	none.Quota = ptr.To[int32](0)
	types["c7i.large"] = none
	want := &Config{
		ClusterID: "prod",
		Shard: Shard{
			ID: "us-west-2a",
			Infra: Infra{
				Provider: "kwok", Region: "us-west-2", Zone: "us-west-2a",
				Kwok: Kwok{Kubeconfig: "/config/kubeconfig", BootDelay: 1500 * time.Millisecond, InstanceTypes: types},
			},
			Bind:               Bind{HealthAddr: "0.0.0.0:8990", OperatorAddr: "[::]:8993"},
			TLS:                TLS{CA: "/config/pki/ca.crt", Cert: "/etc/tls.crt", Key: "/config/tls.key"},
			SubnetPools:        map[string][]string{"default": {"subnet-a", "subnet-b"}, "extra": {"subnet-c"}},
			DynamicSubnetPools: []string{"default"},
		},
		Templates: map[string]Template{
			"worker": {Kind: "knd", Arch: "amd64", Size: 1, InstanceType: "m7i.large", SubnetPool: "default", Vars: map[string]string{"role": "worker"}},
			"bare":   {Kind: "bar", Arch: "arm64", Size: 0},
		},
		Groups: map[string]map[string]Group{
			"default": {
				"main": {Template: "worker"},
				"arm":  {Template: "bare", Size: ptr.To[int32](3), InstanceType: "tiny", SubnetPool: "extra", Vars: map[string]string{"a": "b"}},
			},
			"empty": {},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestParseRefuses changes one thing of the example and expects to be told of
// it, and of nothing else.
func TestParseRefuses(t *testing.T) {
	tests := []struct{ name, old, new, want string }{
		{"cluster id", `"id": "prod"`, `"id": "a--b"`, `cluster.id: Invalid value: "a--b": "a--b" must not contain consecutive hyphens`},
		{"missing cluster id", `"id": "prod"`, ``, `cluster.id: Invalid value: "": must not be empty`},
		{"unknown key", `"id": "prod"`, `"id": "prod", "name": {"x": /* why */ 1}`, `cluster.name: Invalid value: {"x":1}: unknown key, allowed are id`},
		{"unknown key at the top", `"cluster":`, `"clusters": [], "cluster":`, `clusters: Invalid value: []: unknown key, allowed are cluster, groups, shard, templates`},
		{"key given twice", `"id": "prod"`, `"id": "prod", "id": "prod"`, `cluster.id: Duplicate value: "id"`},
		{"wrong type of text", `"id": "prod"`, `"id": 7`, `cluster.id: Invalid value: 7: must be a string`},
		{"wrong type of object", `{"id": "prod"}`, `"prod"`, `cluster: Invalid value: "prod": must be an object`},
		{"wrong type of list", `["default"]`, `"default"`, `shard.dynamic_subnet_pools: Invalid value: "default": must be a list of strings`},
		{"wrong type in a list", `"subnet-b"`, `null`, `shard.subnet_pools.default[1]: Invalid value: null: must be a string`},
		{"wrong type of number", `"size": 3`, `"size": "3"`, `groups.default.arm.size: Invalid value: "3": must be an integer of at most 32 bits`},
		{"fraction", `"size": 3`, `"size": 3.5`, `groups.default.arm.size: Invalid value: 3.5: must be an integer of at most 32 bits`},
		{"number too large", `"size": 3`, `"size": 2147483648`, `groups.default.arm.size: Invalid value: 2147483648: must be an integer of at most 32 bits`},
		{"var that is no text", `{"a": "b"}`, `{"a": true}`, `groups.default.arm.vars.a: Invalid value: true: must be a string`},
		{"shard id", `"id": "us-west-2a"`, `"id": "US"`, `shard.id: Invalid value: "US": "US" must consist of`},
		{"provider", `"provider": "kwok"`, `"provider": "aws"`, `shard.infra.provider: Unsupported value: "aws": supported values: "kwok"`},
		{"region", `"region": "us-west-2"`, `"region": ""`, `shard.infra.region: Required value: must not be empty`},
		{"zone is a label value", `"zone": "us-west-2a"`, `"zone": "a b"`, `shard.infra.zone: Invalid value: "a b": a valid label must be`},
		{"kubeconfig", `"kubeconfig": "kubeconfig",`, ``, `shard.infra.options.kubeconfig: Required value: must not be empty`},
		{"boot delay", `"1.5s"`, `"21d"`, `shard.infra.options.boot_delay: Invalid value: "21d": must be a duration that is not negative, such as "1.5s" or "2m"`},
		{"negative boot delay", `"1.5s"`, `"-1s"`, `shard.infra.options.boot_delay: Invalid value: "-1s": must be a duration`},
		{"cpu", `"500m"`, `"0"`, `shard.infra.options.instance_types.tiny.cpu: Invalid value: "0": must be a quantity greater than zero`},
		{"memory", `"1Gi"`, `"lots"`, `shard.infra.options.instance_types.tiny.memory: Invalid value: "lots": must be a quantity greater than zero`},
		{"arch of a type that is not used", `"instance_types": {`, `"instance_types": {"x": {"cpu": "1", "memory": "1", "arch": "mips"}, `, `shard.infra.options.instance_types.x.arch: Unsupported value: "mips": supported values: "amd64", "arm64"`},
		{"name of an instance type", `"instance_types": {`, `"instance_types": {"a b": {"cpu": "1", "memory": "1", "arch": "arm64"}, `, `shard.infra.options.instance_types.a b: Invalid value: "a b": a valid label must be`},
		{"quota of an unknown type", `"tiny": 3`, `"huge": 3`, `shard.infra.options.quota.huge: Invalid value: "huge": unknown instance type, known are "c7g.2xlarge"`},
		{"negative quota", `"tiny": 3`, `"tiny": -1`, `shard.infra.options.quota.tiny: Invalid value: -1: must not be negative`},
		{"quota that is no number", `"tiny": 3`, `"tiny": "3"`, `shard.infra.options.quota.tiny: Invalid value: "3": must be an integer of at most 32 bits`},
		{"health address", `"0.0.0.0:8990"`, `"8990"`, `shard.bind.health_addr: Invalid value: "8990": must be host:port`},
		{"port that is no number", `"0.0.0.0:8990"`, `"0.0.0.0:http"`, `shard.bind.health_addr: Invalid value: "0.0.0.0:http": must be host:port`},
		{"port out of range", `"0.0.0.0:8990"`, `"0.0.0.0:65536"`, `shard.bind.health_addr: Invalid value: "0.0.0.0:65536": must be host:port`},
		{"operator address", `"[::]:8993"`, `"[::]:"`, `shard.bind.operator_addr: Invalid value: "[::]:": must be host:port`},
		{"equal addresses", `"[::]:8993"`, `"0.0.0.0:8990"`, `shard.bind.operator_addr: Invalid value: "0.0.0.0:8990": must differ from shard.bind.health_addr`},
		{"ca", `"ca": "pki/ca.crt", `, ``, `shard.tls.ca: Required value: must not be empty`},
		{"cert", `"/etc/tls.crt"`, `""`, `shard.tls.cert: Required value: must not be empty`},
		{"key", `"key": "tls.key"`, ``, `shard.tls.key: Required value: must not be empty`},
		{"pool id", `"extra": ["subnet-c"]`, `"extra": ["subnet-c"], "Big": ["subnet-d"]`, `shard.subnet_pools.Big: Invalid value: "Big": "Big" must consist of`},
		{"pool without subnets", `"extra": ["subnet-c"]`, `"extra": []`, `shard.subnet_pools.extra: Required value: needs at least one subnet`},
		{"subnet without a name", `"extra": ["subnet-c"]`, `"extra": [""]`, `shard.subnet_pools.extra[0]: Required value: must not be empty`},
		{"subnet in two pools", `"extra": ["subnet-c"]`, `"extra": ["subnet-b"]`, `shard.subnet_pools.extra[0]: Invalid value: "subnet-b": is in pool "default" already`},
		{"unknown dynamic pool", `["default"]`, `["default", "none"]`, `shard.dynamic_subnet_pools[1]: Invalid value: "none": unknown subnet pool, known are "default", "extra"`},
		{"template name", `"bare": {"kind"`, `"b_c": {"kind": "abc", "arch": "arm64"}, "bare": {"kind"`, `templates.b_c: Invalid value: "b_c": "b_c" must consist of`},
		{"kind", `"kind": "knd"`, `"kind": "kn1"`, `templates.worker.kind: Invalid value: "kn1": must be three lower case letters`},
		{"arch of an unused template", `"kind": "bar", "arch": "arm64"`, `"kind": "bar", "arch": "arm"`, `templates.bare.arch: Unsupported value: "arm": supported values: "amd64", "arm64"`},
		{"size of a template", `"size": 0`, `"size": -1`, `templates.bare.size: Invalid value: -1: must not be negative`},
		{"instance type of another arch", `"m7i.large"`, `"tiny"`, `templates.worker.instance_type: Invalid value: "tiny": no instance type of architecture "amd64", known are "c7i.2xlarge"`},
		{"pool of a template", `"subnet_pool": "default"`, `"subnet_pool": "none"`, `templates.worker.subnet_pool: Invalid value: "none": unknown subnet pool, known are "default", "extra"`},
		{"tenant", `"empty": {}`, `"a--b": {}`, `groups.a--b: Invalid value: "a--b": "a--b" must not contain consecutive hyphens`},
		{"group id", `"main":`, `"Main":`, `groups.default.Main: Invalid value: "Main": "Main" must consist of`},
		{"group without a template", `{"template": "worker"}`, `{}`, `groups.default.main.template: Required value: must name a template: "bare", "worker"`},
		{"unknown template", `{"template": "worker"}`, `{"template": "knz"}`, `groups.default.main.template: Invalid value: "knz": unknown template, known are "bare", "worker"`},
		{"size of a group", `"size": 3`, `"size": -3`, `groups.default.arm.size: Invalid value: -3: must not be negative`},
		{"instance type of a group", `"instance_type": "tiny"`, `"instance_type": "huge"`, `groups.default.arm.instance_type: Invalid value: "huge": no instance type of architecture "arm64"`},
		{"no instance type at all", `"instance_type": "tiny", `, ``, `groups.default.arm.instance_type: Required value: template "bare" has none`},
		{"pool of a group", `"subnet_pool": "extra"`, `"subnet_pool": "none"`, `groups.default.arm.subnet_pool: Invalid value: "none": unknown subnet pool`},
		{"no pool at all", `"subnet_pool": "extra", `, ``, `groups.default.arm.subnet_pool: Required value: template "bare" has none`},
		{"no pools at all", `"subnet_pools": {"default": ["subnet-a", "subnet-b"], "extra": ["subnet-c"]}`, `"subnet_pools": {}`, "shard.subnet_pools: Required value: needs at least one subnet pool\n" +
			"shard.dynamic_subnet_pools[0]: Invalid value: \"default\": unknown subnet pool, known are none\n"},
		{"long value", `"id": "prod"`, `"id": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31]`,
			`cluster.id: Invalid value: "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,3…": must be a string`},
		{"no JSON", `{"id": "prod"}`, `{"id": "prod"`, `hujson: line`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if strings.Count(example, tc.old) == 0 {
				t.Fatalf("the example has no %s", tc.old)
			}
			_, err := Parse([]byte(strings.Replace(example, tc.old, tc.new, 1)), "")
			if _, invalid := errors.AsType[*InvalidError](err); !invalid {
				t.Fatalf("got %T %v, want an InvalidError", err, err)
			}
			// A want of one line is the only error.
			if !strings.HasPrefix(err.Error(), tc.want) || !strings.Contains(tc.want, "\n") && strings.Contains(err.Error(), "\n") {
				t.Errorf("got  %s\nwant %s", err, tc.want)
			}
		})
	}
}

func TestParseReportsAllErrorsTogether(t *testing.T) {
	_, err := Parse([]byte(`{"cluster": {"id": 1, "x": 2}, "templates": {"a": {"kind": "A", "arch": "b"}}}`), "")
	if err == nil {
		t.Fatal("was accepted")
	}
	var fields []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		name, _, _ := strings.Cut(line, ": ")
		fields = append(fields, name)
	}
	want := []string{
		"cluster.id", "cluster.x",
		"shard.id", "shard.infra.region", "shard.infra.zone", "shard.infra.provider",
		"shard.bind.health_addr", "shard.bind.operator_addr",
		"shard.tls.ca", "shard.tls.cert", "shard.tls.key", "shard.subnet_pools",
		"templates.a.kind", "templates.a.arch",
	}
	if !slices.Equal(fields, want) {
		t.Errorf("got errors for  %q\nwant errors for %q\n%v", fields, want, err)
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shard.jsonc")
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a missing file gives %v", err)
	}
	if err := os.WriteFile(path, []byte(`{}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Load(path)
	if _, invalid := errors.AsType[*InvalidError](err); !invalid || !strings.Contains(err.Error(), path) {
		t.Errorf("a file that is wrong gives %v", err)
	}
	if err := os.WriteFile(path, []byte(example), 0o600); err != nil {
		t.Fatal(err)
	}
	written := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	if err := os.Chtimes(path, written, written); err != nil {
		t.Fatal(err)
	}
	c, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if s := c.Source; s.Path != path || string(s.Data) != example || !s.LastModified.Equal(written) || len(s.ETag) != 64 {
		t.Errorf("the source is %s with tag %q of %v", s.Path, s.ETag, s.LastModified)
	}
	if want := filepath.Join(filepath.Dir(path), "pki/ca.crt"); c.Shard.TLS.CA != want {
		t.Errorf("the CA is %s, want %s beside the configuration", c.Shard.TLS.CA, want)
	}
}

// TestReadTellsContentsApart: the content makes the tag, whatever else a file is.
func TestReadTellsContentsApart(t *testing.T) {
	folder := t.TempDir()
	tag := func(name, content string) string {
		t.Helper()
		path := filepath.Join(folder, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		source, err := Read(path)
		if err != nil {
			t.Fatal(err)
		}
		return source.ETag
	}
	if tag("a", "x") != tag("b", "x") || tag("a", "x") == tag("a", "y") {
		t.Error("tags do not follow the content")
	}
	// A link is followed each time.
	link := filepath.Join(folder, "link")
	var tags []string
	for _, target := range []string{"a", "b"} {
		if err := os.Symlink(target, link+".next"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link+".next", link); err != nil {
			t.Fatal(err)
		}
		source, err := Read(link)
		if err != nil {
			t.Fatal(err)
		}
		tags = append(tags, source.ETag)
	}
	if want := []string{tag("a", "y"), tag("b", "x")}; !slices.Equal(tags, want) {
		t.Errorf("by the link the tags are %q, want %q", tags, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte(`{"shard": {"infra": {"provider": "kwok", "options": {"instance_types": {"": {}}}}}}`))
	f.Add([]byte(`{"groups": {"": {"": null}}}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data, "/config")
		if (c == nil) == (err == nil) {
			t.Fatalf("got %v and error %v, want one of them", c, err)
		}
		if err != nil {
			return
		}
		// What the other rooms rely on without asking again.
		for _, groups := range c.Groups {
			for name, group := range groups {
				template, found := c.Templates[group.Template]
				if !found || template.Size < 0 || ptr.Deref(group.Size, 0) < 0 {
					t.Errorf("accepted group %q: %+v of template %+v", name, group, template)
				}
			}
		}
	})
}
