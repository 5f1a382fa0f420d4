// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package proxmox

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/provider/providertest"
)

// read returns the options in a text, and what is wrong with them.
func read(t *testing.T, text string) (*Options, []string) {
	t.Helper()
	return providertest.ReadOptions[*Options](t, ReadOptions, text, "subnet")
}

// minimal has the options that are mandatory, by name.
func minimal() map[string]string {
	return map[string]string{
		"endpoints":      `["https://pve1:8006"]`,
		"token":          `{"env": "TOKEN"}`,
		"nodes":          `["pve1"]`,
		"iso_storage":    `"local"`,
		"subnets":        `{"subnet": {"bridge": "vmbr0", "storage": "ceph"}}`,
		"instance_types": `{"small": {"cpu": "1", "memory": "1Gi", "arch": "amd64"}}`,
	}
}

func TestReadOptions(t *testing.T) {
	options, errs := read(t, providertest.Object(minimal()))
	require.Empty(t, errs)
	assert.True(t, options.RunsAgent())
	assert.True(t, options.FullClone)
	assert.Equal(t, Connection{Endpoints: []string{"https://pve1:8006"}, TokenEnv: "TOKEN"}, options.Connection)

	members := minimal()
	for name, value := range map[string]string{
		"token": `{"file": "/token"}`, "ca_file": `"/ca.pem"`, "template": `"debian-12"`, "disk_size": `"20Gi"`, "pool": `"a/b"`,
		"agent": "false", "quota": `{"small": 3}`,
		"subnets": `{"subnet": {"bridge": "vnet1", "storage": "ceph", "vlan": 7, "instances": 5}}`,
	} {
		members[name] = value
	}
	options, errs = read(t, providertest.Object(members))
	require.Empty(t, errs)
	assert.Equal(t, Image{Template: "debian-12", DiskSize: "20Gi"}, options.Image)
	assert.False(t, options.RunsAgent())
	assert.Equal(t, "a/b", options.Pool)
	assert.EqualValues(t, 7, *options.Subnets["subnet"].VLAN)
	assert.EqualValues(t, 5, *options.Subnets["subnet"].Instances)
	assert.EqualValues(t, 3, *options.Catalogue()["small"].Quota)
	for _, immutable := range options.ImmutableFields(field.NewPath("options")) {
		assert.NotContains(t, immutable.Path.String(), "instance_types")
	}
}

func TestInvalidOptions(t *testing.T) {
	_, errs := read(t, "{}")
	assert.ElementsMatch(t, []string{
		"token: Required value: must have exactly one of env, file",
		"options.endpoints: Required value: must have at least one address",
		"options.nodes: Required value: must have at least one node",
		"options.iso_storage: Required value: must not be empty",
		"options.subnets.subnet: Required value: must say where the machines of this subnet are created",
		"options.instance_types: Required value: must have at least one instance type",
	}, errs)
	for _, tc := range []struct{ name, member, value, want string }{
		{"no TLS", "endpoints", `["http://pve1:8006"]`, `options.endpoints[0]: Invalid value: "http://pve1:8006": must be an address such as`},
		{"a path", "endpoints", `["https://pve1:8006/api2"]`, "options.endpoints[0]: Invalid value"},
		{"a password", "endpoints", `["https://root:x@pve1:8006"]`, "options.endpoints[0]: Invalid value"},
		{"a token", "token", `"root@pam!x=secret"`, "token: Invalid value"},
		{"two tokens", "token", `{"env": "A", "file": "/b"}`, "token"},
		{"a relative token", "token", `{"file": "token"}`, "options.token.file: Invalid value"},
		{"a relative CA", "ca_file", `"ca.pem"`, "options.ca_file: Invalid value"},
		{"a fingerprint", "fingerprints", `["aa"]`, "options.fingerprints[0]: Invalid value"},
		{"a domain", "nodes", `["pve1.example.com"]`, "options.nodes[0]: Invalid value"},
		{"a node twice", "nodes", `["pve1", "pve1"]`, "options.nodes[1]: Duplicate value"},
		{"a template", "template", `"a b"`, "options.template: Invalid value"},
		{"a disk", "disk_size", `"20GB"`, "options.disk_size: Invalid value"},
		{"a part of Mi", "disk_size", `"100k"`, "options.disk_size: Invalid value"},
		{"a storage", "iso_storage", `"local:iso"`, "options.iso_storage: Invalid value"},
		{"a pool", "pool", `"a b"`, "options.pool: Invalid value"},
		{"an unknown subnet", "subnets", `{"subnet": {"bridge": "b", "storage": "st"}, "x": {"bridge": "b", "storage": "st"}}`, `options.subnets.x: Invalid value: "x": unknown subnet`},
		{"a bridge", "subnets", `{"subnet": {"bridge": "b,tag=1", "storage": "st"}}`, "options.subnets.subnet.bridge: Invalid value"},
		{"no bridge", "subnets", `{"subnet": {"storage": "st"}}`, "options.subnets.subnet.bridge: Required value"},
		{"no storage", "subnets", `{"subnet": {"bridge": "b"}}`, "options.subnets.subnet.storage: Required value"},
		{"too little memory to promise", "memory_commit", "9", "options.memory_commit: Invalid value: 9: must be a percentage from 10 to 1000"},
		{"a tag", "subnets", `{"subnet": {"bridge": "b", "storage": "st", "vlan": 4095}}`, "options.subnets.subnet.vlan: Invalid value: 4095: must be between 1 and 4094"},
		{"a negative room", "subnets", `{"subnet": {"bridge": "b", "storage": "st", "instances": -1}}`, "options.subnets.subnet.instances: Invalid value"},
		{"a linked clone", "full_clone", "false", "options.subnets.subnet.storage: Forbidden"},
		{"half a processor", "instance_types", `{"a": {"cpu": "500m", "memory": "1Gi", "arch": "amd64"}}`, "options.instance_types.a.cpu: Invalid value"},
		{"memory", "instance_types", `{"a": {"cpu": "1", "memory": "1G", "arch": "amd64"}}`, "options.instance_types.a.memory: Invalid value"},
		{"ARM", "instance_types", `{"a": {"cpu": "1", "memory": "1Gi", "arch": "arm64"}}`, "options.instance_types.a.arch: Unsupported value"},
		{"a quota", "quota", `{"none": 1}`, "quota.none: Invalid value"},
		{"an unknown option", "node", `"pve1"`, "node: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			members := minimal()
			members[tc.member] = tc.value
			_, errs := read(t, providertest.Object(members))
			text := strings.Join(errs, "\n")
			assert.Contains(t, text, tc.want)
			assert.NotContains(t, text, "secret")
		})
	}
	members := minimal()
	members["ca_file"], members["fingerprints"] = `"/ca.pem"`, `["`+strings.Repeat("00", 32)+`"]`
	_, errs = read(t, providertest.Object(members))
	assert.Equal(t, []string{"options.ca_file: Forbidden: a certificate with one of the fingerprints needs none"}, errs)
}

func TestValidateArgs(t *testing.T) {
	path, o := field.NewPath("args"), &Options{}
	assert.Empty(t, o.ValidateArgs(path, map[string]any{"template": "{{.Vars.template}}", "disk_size": "20Gi"}))
	assert.Equal(t, []string{
		`args.bios: Unsupported value: "bios": supported values: "disk_size", "template"`,
		`args.template: Invalid value: 5: must be a string`,
		`args.disk_size: Invalid value: "big": must be full Mi or Gi, such as "20Gi"`,
	}, providertest.Messages(o.ValidateArgs(path, map[string]any{"bios": "x", "template": 5, "disk_size": "big"})))
	_, err := Image{}.with(nil)
	require.ErrorContains(t, err, "neither the arguments nor the options of the provider have a template")
	_, err = Image{Template: "a"}.with(map[string]any{"template": "{{"})
	require.ErrorContains(t, err, "args.template: Invalid value")
}

func TestParseDriveSize(t *testing.T) {
	for text, want := range map[string]int64{"20G": 20 << 30, "512M": 512 << 20, "1.5T": 3 << 39, "528K": 528 << 10, "4096": 4096} {
		got, err := parseDriveSize(text)
		require.NoError(t, err)
		assert.Equal(t, want, got, text)
	}
	for _, text := range []string{"", "G", "20GG", "20 G", "x"} {
		_, err := parseDriveSize(text)
		require.Error(t, err, text)
	}
}

// TestDocumentedPrivileges: what "nstance-admin shard init" writes grants what is checked at the start,
// and no more.
func TestDocumentedPrivileges(t *testing.T) {
	options := &Options{ISOStorage: "local", Subnets: map[string]Subnet{"lan": {Bridge: "vmbr0", Storage: "ceph"}}}
	want := map[string]bool{}
	for _, needed := range options.privileges() {
		want[needed.name] = true
	}
	document, err := os.ReadFile("../../../admin/shardinit/templates/proxmox-setup.sh.tmpl")
	require.NoError(t, err)
	granted := map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^role \w+ "([^"]+)"`).FindAllStringSubmatch(string(document), -1) {
		for name := range strings.FieldsSeq(match[1]) {
			granted[name] = true
		}
	}
	assert.Equal(t, want, granted)
}
