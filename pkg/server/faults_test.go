// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server"
)

// fault is a mistake in the configuration of a document.
type fault struct {
	// old is the part of the configuration that with replaces.
	old, with string
	// at is a part of the line that the error names. Empty means with.
	at string
	// want are the field, the value and what is allowed, as the error has them.
	want string
	// others is the number of other mistakes that follow from this one.
	others int
}

// TestFaultyConfigurations: validate names the field, the value, what is allowed, and the line of
// each mistake.
func TestFaultyConfigurations(t *testing.T) {
	const userdata = `"userdata": {"url": "https://files.example.com/userdata.sh", "sha256": "0000000000000000000000000000000000000000000000000000000000000000"},`
	faults := map[string][]fault{
		"aws.md": {
			{old: `"id": "prod",`, with: `"id": "Prod_1",`, want: `cluster.id: Invalid value: "Prod_1": "Prod_1" must consist of`},
			{old: `"provider": "object-storage"`, with: `"provider": "vault"`, want: `cluster.secrets.provider: Unsupported value: supported values: "object-storage", "aws-secrets-manager"`},
			{old: `{"env": "NSTANCE_ENCRYPTION_KEY"}`, with: `{}`, at: `"encryption_key"`, want: `cluster.secrets.encryption_key: Required value: must have exactly one of env, file`},
			{old: `"provider": "aws"`, with: `"provider": "azure"`, want: `shard.infra.provider: Unsupported value: "azure": supported values: "aws", "docker", "google", "kwok", "proxmox", "qemu"`},
			{old: `"zone": "us-west-2a"`, with: `"zone": "eu-west-1a"`, want: `shard.infra.zone: Invalid value: "eu-west-1a": must be a zone of region us-west-2, such as us-west-2a`},
			{old: `"quota": {"m7g.large": 20}`, with: `"quota": {"m9.large": 20}`, want: `shard.infra.options.quota.m9.large: Invalid value: "m9.large": unknown instance type, known are `},
			{old: `"quota": {"m7g.large": 20}`, with: `"quota": {"m7g.large": -1}`, want: `shard.infra.options.quota.m7g.large: Invalid value: -1: must not be negative`},
			{old: `"quota": {"m7g.large": 20},`, with: `"quota": {"m7g.large": 20}, "address_reserve": 100000,`, want: `shard.infra.options.address_reserve: Invalid value: 100000: must be a number from 0 to 65536`},
			{old: `"memory": "8Gi", "arch": "arm64"`, with: `"memory": "8 GB", "arch": "arm64"`, want: `shard.infra.options.instance_types.m8g.large.memory: Invalid value: "8 GB": must be a quantity greater than zero, such as "2" or "8Gi"`},
			{old: `"agent_addr": "0.0.0.0:8994",`, with: `"agent_addr": "0.0.0.0:8993",`, want: `shard.bind.agent_addr: Invalid value: "0.0.0.0:8993": must differ from shard.bind.operator_addr`},
			{old: `"agent_addr": "0.0.0.0:8994",`, with: ``, at: `"bind"`, want: `shard.bind.agent_addr: Invalid value: "": must be host:port`},
			{old: `"10.0.0.20:8993"`, with: `"10.0.0.20"`, want: `shard.advertise.operator_addr: Invalid value: "10.0.0.20": must be host:port`},
			{old: `{"default": ["subnet-0123456789abcdef0"]}`, with: `{"default": []}`, want: `shard.subnet_pools.default: Required value: needs at least one subnet`},
			{old: `{"registration_timeout": "15m"}`, with: `{"registration_timeout": "soon"}`, want: `shard.garbage_collection.registration_timeout: Invalid value: "soon": must be a duration`},
			{old: `"kind": "knd"`, with: `"kind": "node"`, want: `templates.worker.kind: Invalid value: "node": must be three lower case letters`},
			{old: `"arch": "arm64",
			"instance_type"`, with: `"arch": "arm",
			"instance_type"`, at: `"arch": "arm",`, want: `templates.worker.arch: Unsupported value: "arm": supported values: "amd64", "arm64"`},
			{old: `"instance_type": "m7g.large"`, with: `"instance_type": "m7i.large"`, want: `templates.worker.instance_type: Invalid value: "m7i.large": no instance type of architecture "arm64", known are `},
			{old: `"subnet_pool": "default"`, with: `"subnet_pool": "private"`, want: `templates.worker.subnet_pool: Invalid value: "private": unknown subnet pool, known are "default"`},
			{old: `"security_groups": ["sg-0123456789abcdef0"]`, with: `"security_groups": ["nodes"]`, want: `templates.worker.args.security_groups[0]: Invalid value: "nodes": must be the id of a security group`},
			{old: `"image_owners": ["self"],`, with: ``, at: `"args"`, want: `templates.worker.args.image_owners: Required value: every account can publish an image with any name`},
			{old: `"size": "30Gi"`, with: `"size": "30GB"`, want: `templates.worker.args.root_volume.size: Invalid value: "30GB": must be full Gi`},
			{old: `"type": "gp3"`, with: `"type": "ssd"`, want: `templates.worker.args.root_volume.type: Unsupported value: "ssd": supported values: "gp2", "gp3"`},
			{old: `"tags": {"team": "platform"}`, with: `"tags": {"nstance:shard": "b"}`, want: `templates.worker.args.tags[nstance:shard]: Forbidden: tags with the prefix nstance: are the server's own`},
			{old: `"tags": {"team": "platform"}`, with: `"tags": {"kubernetes.io/cluster/prod": "owned"}, "metadata_options": {"instance_metadata_tags": "enabled"}`,
				want: `templates.worker.args.tags[kubernetes.io/cluster/prod]: Invalid value: "kubernetes.io/cluster/prod": must consist of letters, digits and + - = . , _ : @`},
			{old: userdata, with: `"userdata": "\n#!/bin/sh\n{{.Instance.ID}} {{.Nonce}}",`, want: `templates.worker.userdata: Invalid value: must not be empty or begin with white space`},
			{old: userdata, with: `"userdata": "#!/bin/sh\r\n{{.Instance.ID}} {{.Nonce}}",`, want: `templates.worker.userdata: Invalid value: must have the line ends of Unix`},
			{old: userdata, with: `"userdata": "#!/bin/sh\n{{.Instance.ID}}",`, want: `templates.worker.userdata: Invalid value: must contain {{.Instance.ID}} and {{.Nonce}}`},
			{old: `"market": "spot"`, with: `"market": "cheap"`, want: `templates.spot.args.market: Unsupported value: "cheap": supported values: "on-demand", "spot"`},
			{old: `"url": "https://files.example.com/userdata.sh"`, with: `"url": "s3://files/userdata.sh"`, want: `templates.worker.userdata.url: Invalid value: must be a URL that begins with http:// or https://`},
			{old: `"sha256": "0000000000000000000000000000000000000000000000000000000000000000"`, with: `"sha256": "0"`, want: `templates.worker.userdata.sha256: Invalid value: "0": must be 64 lower case hexadecimal digits`},
			{old: `"kind": "secret"`, with: `"kind": "password"`, want: `templates.worker.files.join.json.kind: Unsupported value: "password": supported values: "certificate", "secret"`},
			{old: `"groups": {},`, with: `"groups": {"default": {"a": {"template": "workers", "size": 1}}},`, want: `groups.default.a.template: Invalid value: "workers": unknown template, known are "spot", "worker"`},
			{old: `"groups": {},`, with: "\"groups\": {\"default\": {\"a\": {\"template\": \"worker\",\n\"size\": -1}}},", at: `"size": -1`, want: `groups.default.a.size: Invalid value: -1: must not be negative`},
			{old: `"groups": {},`, with: `"groups": {}, "pools": {},`, want: `pools: Invalid value: {}: unknown key, allowed are certificates, cluster, defaults, groups, load_balancers, shard, templates`},
		},
		"google.md": {
			{old: `"project": "my-project",
				"machine"`, with: `"project": "My Project",
				"machine"`, at: `"My Project"`, want: `shard.infra.options.project: Invalid value: "My Project": must be the id of a project`},
			{old: `"zone": "europe-west1-b"`, with: `"zone": "europe-west2-b"`, want: `shard.infra.zone: Invalid value: "europe-west2-b": must be a zone of region europe-west1, such as europe-west1-b`},
			{old: `"projects/my-project/global/images/family/nstance-node"`, with: `"debian-13"`, want: `shard.infra.options.machine.image: Invalid value: "debian-13": must be`},
			{old: `{"nodes": {"subnetwork": "nodes"}}`, with: `{"nodes": {"subnetwork": "nodes", "stack_type": "ipv6"}}`, want: `shard.infra.options.subnets.nodes.stack_type: Unsupported value: "ipv6": supported values: "IPV4_ONLY", "IPV4_IPV6", "IPV6_ONLY"`},
			{old: `{"nodes": {"subnetwork": "nodes"}}`, with: `{"nodes": {"subnetwork": "nodes"}}, "address_reserve": -1`, want: `shard.infra.options.address_reserve: Invalid value: -1: must be a number from 0 to 65536`},
			{old: `{"nodes": {"subnetwork": "nodes"}}`, with: `{}`, want: `shard.infra.options.subnets.nodes: Required value: must name the subnetwork of this subnet`},
			{old: `"provisioning_model": "SPOT"`, with: `"provisioning_model": "spot"`, want: `templates.spot.args.provisioning_model: Unsupported value: "spot": supported values: "SPOT", "STANDARD"`},
			{old: `{"team": "batch"}`, with: `{"nstance-shard": "b"}`, want: `templates.spot.args.labels[nstance-shard]: Forbidden: labels that begin with nstance- are the server's own`},
		},
		"proxmox.md": {
			{old: `"https://pve2.example.com:8006"`, with: `"http://pve2.example.com:8006"`, want: `shard.infra.options.endpoints[1]: Invalid value: "http://pve2.example.com:8006": must be an address such as "https://`},
			{old: `{"file": "/etc/nstance/proxmox-token"}`, with: `{"file": "proxmox-token"}`, want: `shard.infra.options.token.file: Invalid value: "proxmox-token": must be an absolute path`},
			{old: `"nodes": ["pve1", "pve2"]`, with: `"nodes": ["pve1", "pve1"]`, want: `shard.infra.options.nodes[1]: Duplicate value: "pve1"`},
			{old: `"disk_size": "20Gi"`, with: `"disk_size": "20GB"`, want: `shard.infra.options.disk_size: Invalid value: "20GB": must be full Mi or Gi`},
			{old: `"instances": 50`, with: `"vlan": 4095`, want: `shard.infra.options.subnets.lan.vlan: Invalid value: 4095: must be between 1 and 4094`},
			{old: `"iso_storage": "local",`, with: `"iso_storage": "local", "memory_commit": 5,`, want: `shard.infra.options.memory_commit: Invalid value: 5: must be a percentage from 10 to 1000`},
			{old: `"cpu": "8"`, with: `"cpu": "500m"`, want: `shard.infra.options.instance_types.large.cpu: Invalid value: "500m": must be a whole number`},
		},
	}
	count := 0
	for document, all := range faults {
		configurations := blocks(t, document, "jsonc")
		require.Len(t, configurations, 1)
		for n, fault := range all {
			count++
			t.Run(fmt.Sprintf("%s %d %s", document, n, fault.with), func(t *testing.T) {
				require.Contains(t, configurations[0], fault.old)
				text := strings.Replace(configurations[0], fault.old, fault.with, 1)
				at := fault.at
				if at == "" {
					at = fault.with
				}
				before, _, found := strings.Cut(text, at)
				require.True(t, found)
				line := 1 + strings.Count(before, "\n")
				path := filepath.Join(t.TempDir(), "shard.jsonc")
				require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
				err := server.Validate(t.Context(), server.Options{}, path, io.Discard)
				require.Error(t, err)
				header, mistakes, _ := strings.Cut(err.Error(), "\n")
				assert.Equal(t, "configuration "+path+":", header)
				found = false
				for message := range strings.SplitSeq(mistakes, "\n") {
					found = found || strings.HasPrefix(message, fault.want) && strings.HasSuffix(message, fmt.Sprintf(" (line %d)", line))
				}
				assert.True(t, found, "got  %v\nwant %s … (line %d)", err, fault.want, line)
				assert.Equal(t, fault.others, strings.Count(mistakes, "\n"), "other mistakes: %s", mistakes)
			})
		}
	}
	assert.GreaterOrEqual(t, count, 40)
}
