// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"strings"
	"testing"
	"time"

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
		"project":        `"my-project"`,
		"subnets":        `{"subnet": {"subnetwork": "nodes"}}`,
		"instance_types": `{"e2-small": {"cpu": "2", "memory": "2Gi", "arch": "amd64"}}`,
	}
}

func TestReadOptions(t *testing.T) {
	options, errs := read(t, providertest.Object(minimal()))
	require.Empty(t, errs)
	assert.True(t, options.RunsAgent())
	assert.Equal(t, defaultEndpoint, options.endpoint())
	assert.EqualValues(t, 10, options.AddressReserve)

	members := minimal()
	for name, value := range map[string]string{
		"endpoint": `"http://127.0.0.1:8080/compute/v1"`, "agent": "false", "draining_timeout": `"5m"`, "quota": `{"e2-small": 3}`,
		"subnets": `{"subnet": {"subnetwork": "nodes", "project": "host-project"}}`,
		"machine": `{"image": "projects/debian-cloud/global/images/family/debian-13", "provisioning_model": "SPOT", "labels": {"a": "b"}}`,
	} {
		members[name] = value
	}
	options, errs = read(t, providertest.Object(members))
	require.Empty(t, errs)
	assert.False(t, options.RunsAgent())
	assert.Equal(t, 5*time.Minute, options.DrainingTimeout)
	assert.Equal(t, Subnet{Subnetwork: "nodes", Project: "host-project"}, options.Subnets["subnet"])
	assert.EqualValues(t, 3, *options.Catalogue()["e2-small"].Quota)
	for _, immutable := range options.ImmutableFields(field.NewPath("options")) {
		assert.NotContains(t, immutable.Path.String(), "instance_types")
	}
	// Each argument replaces the argument of the same name in the options.
	args, err := options.arguments(map[string]any{argProvisioning: "STANDARD"})
	require.NoError(t, err)
	assert.Equal(t, "STANDARD", args.provisioning)
	assert.Equal(t, map[string]string{"a": "b"}, args.labels)
}

func TestInvalidOptions(t *testing.T) {
	_, errs := read(t, "{}")
	assert.ElementsMatch(t, []string{
		"options.project: Required value: must not be empty",
		"options.subnets.subnet: Required value: must name the subnetwork of this subnet",
		"options.instance_types: Required value: must have at least one instance type",
	}, errs)
	for _, tc := range []struct{ name, member, value, want string }{
		{"a path", "project", `"a/b"`, `options.project: Invalid value: "a/b": must be the id of a project`},
		{"a number", "project", `"123456"`, "options.project: Invalid value"},
		{"a reserve", "address_reserve", "-1", "options.address_reserve: Invalid value: -1: must be a number from 0 to 65536"},
		{"an endpoint", "endpoint", `"compute.googleapis.com"`, "options.endpoint: Invalid value"},
		{"a password", "endpoint", `"https://a:b@c"`, "options.endpoint: Invalid value"},
		{"a stack type", "subnets", `{"subnet": {"subnetwork": "a", "stack_type": "ipv6"}}`, `options.subnets.subnet.stack_type: Unsupported value: "ipv6"`},
		{"an unknown subnet", "subnets", `{"subnet": {"subnetwork": "a"}, "x": {"subnetwork": "a"}}`, `options.subnets.x: Invalid value: "x": unknown subnet`},
		{"no subnetwork", "subnets", `{"subnet": {}}`, "options.subnets.subnet.subnetwork: Required value"},
		{"a subnetwork", "subnets", `{"subnet": {"subnetwork": "../a"}}`, "options.subnets.subnet.subnetwork: Invalid value"},
		{"a project of a subnetwork", "subnets", `{"subnet": {"subnetwork": "a", "project": "?"}}`, "options.subnets.subnet.project: Invalid value"},
		{"a machine type", "instance_types", `{"E2": {"cpu": "1", "memory": "1Gi", "arch": "amd64"}}`, "options.instance_types.E2: Invalid value"},
		{"a quota", "quota", `{"none": 1}`, "quota.none: Invalid value"},
		{"a draining timeout", "draining_timeout", `"61m"`, "options.draining_timeout: Invalid value: \"1h1m0s\": must be at most 1h0m0s"},
		{"an unknown option", "zone", `"a"`, "zone: "},
		{"an unknown argument", "machine", `{"disk": "x"}`, `options.machine.disk: Unsupported value: "disk": supported values: "disk_size", "disk_type"`},
		{"an image", "machine", `{"image": "debian-13"}`, "options.machine.image: Invalid value"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			members := minimal()
			members[tc.member] = tc.value
			_, errs := read(t, providertest.Object(members))
			assert.Contains(t, strings.Join(errs, "\n"), tc.want)
		})
	}
}

func TestValidateArgs(t *testing.T) {
	path, o := field.NewPath("args"), &Options{}
	assert.Empty(t, o.ValidateArgs(path, map[string]any{
		argImage: "{{.Vars.image}}", argDiskSize: "{{.Vars.size}}", argLabels: map[string]any{"group": "{{.Instance.Group}}"},
		argNetworkTags: []any{"{{.Vars.tag}}"}, argProvisioning: "{{.Vars.model}}",
	}))
	for _, tc := range []struct {
		name  string
		value any
		want  string
	}{
		{"size", "x", `args.size: Unsupported value: "size"`},
		{argImage, 5, "args.image: Invalid value: 5: must be a string"},
		{argImage, "projects/a/zones/b/images/c", "args.image: Invalid value"},
		{argDiskSize, "20G", "must be full Gi"},
		{argDiskSize, "100Ti", "at most 64Ti"},
		{argDiskType, "PD", "args.disk_type: Invalid value"},
		{argExternalIP, "yes", "must be true or false"},
		{argInstanceTemplate, "node", "args.instance_template: Invalid value"},
		{argProvisioning, "spot", `args.provisioning_model: Unsupported value: "spot": supported values: "SPOT", "STANDARD"`},
		{argServiceAccount, "nodes", "must be the email address of a service account"},
		{argScopes, []any{"https://www.googleapis.com/auth/compute"}, "args.service_account: Required value"},
		{argScopes, "cloud-platform", "must be a list of strings"},
		{argNetworkTags, []any{"A"}, "args.network_tags[0]: Invalid value"},
		{argNetworkTags, []any{1}, "args.network_tags[0]: Invalid value: 1: must be a string"},
		{argLabels, map[string]any{"nstance-shard": "b"}, "args.labels[nstance-shard]: Forbidden: labels that begin with nstance- are the server's own"},
		{argLabels, map[string]any{"A": "b"}, "args.labels[A]: Invalid value"},
		{argLabels, map[string]any{"a": "B"}, "args.labels[a]: Invalid value"},
		{argLabels, map[string]any{"a": 1}, "args.labels[a]: Invalid value: 1: must be a string"},
		{argLabels, "a=b", "must be an object of strings"},
		{argMetadata, map[string]any{"user-data": "x"}, "args.metadata[user-data]: Forbidden"},
		{argMetadata, map[string]any{"a b": "x"}, "args.metadata[a b]: Invalid value"},
	} {
		errs := providertest.Messages(o.ValidateArgs(path, map[string]any{tc.name: tc.value}))
		assert.Contains(t, strings.Join(errs, "\n"), tc.want, "%s: %v", tc.name, tc.value)
	}
	_, err := o.arguments(nil)
	require.ErrorContains(t, err, "neither the arguments nor the options of the provider have an image")
	_, err = o.arguments(map[string]any{argInstanceTemplate: "global/instanceTemplates/a", argDiskSize: "20Gi"})
	require.ErrorContains(t, err, "the disks are those of the instance_template")
	many := map[string]any{}
	for n := range 60 {
		many["l"+strings.Repeat("x", n)] = "v"
	}
	assert.Contains(t, strings.Join(providertest.Messages(o.ValidateArgs(path, map[string]any{argLabels: many})), ""), "Too many")
}

// TestZones: a zone is of the region.
func TestZones(t *testing.T) {
	path := field.NewPath("zone")
	assert.Empty(t, (&Options{}).ValidateZone(path, "europe-west1", "europe-west1-b"))
	for _, zone := range []string{"europe-west10-a", "europe-west1", "europe-west1-"} {
		assert.Equal(t, []string{`zone: Invalid value: "` + zone + `": must be a zone of region europe-west1, such as europe-west1-b`},
			providertest.Messages((&Options{}).ValidateZone(path, "europe-west1", zone)))
	}
}
