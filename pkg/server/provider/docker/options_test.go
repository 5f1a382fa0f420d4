// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker

import (
	"net/netip"
	"testing"
	"time"

	"github.com/moby/moby/api/types/network"
	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/provider/providertest"
)

// read reads options from JSON and returns what is wrong with them.
func read(t *testing.T, text string) (*Options, []string) {
	t.Helper()
	return providertest.ReadOptions[*Options](t, ReadOptions, text)
}

func TestOptions(t *testing.T) {
	options, problems := read(t, `{}`)
	assert.Empty(t, problems)
	assert.True(t, options.RunsAgent())
	assert.Equal(t, 10*time.Second, options.StopTimeout)
	assert.Contains(t, options.Catalogue(), "small.amd64")

	options, problems = read(t, `{"host": "tcp://10.0.0.1:2375", "image": "node:1", "stop_timeout": "5s", "agent": false, "check_source_address": false,
		"instance_types": {"huge": {"cpu": "8", "memory": "8Gi", "arch": "arm64"}}, "quota": {"huge": 3}}`)
	assert.Empty(t, problems)
	assert.False(t, options.RunsAgent())
	assert.False(t, options.ChecksSource())
	assert.Equal(t, int32(3), *options.Catalogue()["huge"].Quota)

	_, problems = read(t, `{"host": "somewhere", "image": " a", "stop_timeout": "1m", "instance_types": {"x": {"cpu": "1", "memory": "1Gi", "arch": "mips"}}}`)
	assert.Equal(t, []string{
		`options.host: Invalid value: "somewhere": must be an address such as "unix:///var/run/docker.sock"`,
		`options.image: Invalid value: " a": must not begin or end with spaces`,
		`options.stop_timeout: Invalid value: "1m0s": must be full seconds and at most 20s`,
		`options.instance_types.x.arch: Unsupported value: "mips": supported values: "amd64", "arm64"`,
	}, problems)
}

func TestOptionsOfTheMetadataService(t *testing.T) {
	options, problems := read(t, `{"metadata_addr": "172.17.0.1:8996", "notices": "/var/lib/notices"}`)
	assert.Empty(t, problems)
	assert.Equal(t, "172.17.0.1:8996", options.MetadataAddress)
	assert.Equal(t, "/var/lib/notices", options.Notices)
	for _, address := range []string{"8996", "host:8996", "0.0.0.0:8996", "127.0.0.1:8996", "[fd00::1]:8996", "172.17.0.1:0"} {
		_, problems = read(t, `{"metadata_addr": "`+address+`"}`)
		assert.Equal(t, []string{`options.metadata_addr: Invalid value: "` + address +
			`": must be the IPv4 address and a port of this machine in the network of the containers, such as "172.17.0.1:8996"`}, problems)
	}
	_, problems = read(t, `{"notices": "notices"}`)
	assert.Equal(t, []string{
		`options.notices: Forbidden: only the metadata service has notices, and metadata_addr is not set`,
		`options.notices: Invalid value: "notices": must be an absolute path`,
	}, problems)
}

func TestValidateArgs(t *testing.T) {
	path, o := field.NewPath("args"), &Options{}
	assert.Empty(t, providertest.Messages(o.ValidateArgs(path, map[string]any{
		"image": "{{.Vars.image}}", "privileges": "{{.Vars.privileges}}", "env": map[string]any{"A": "{{.Instance.ID}}"},
		"volumes": []any{"/data", "name:/data", "/host:/data:ro", "{{.Vars.volume}}"}, "command": []any{"run"},
		"tmpfs": map[string]any{"/run": "exec"}, "labels": map[string]any{"a": "b"},
	})))
	assert.Equal(t, []string{
		`args.networks: Unsupported value: "networks": supported values: "command", "env", "image", "labels", "privileges", "tmpfs", "volumes"`,
		`args.image: Invalid value: 5: must be a string`,
		`args.env[A]: Invalid value: 1: must be a string`,
		`args.command[0]: Invalid value: 2: must be a string`,
		`args.privileges: Unsupported value: "all": supported values: "capabilities", "privileged", "unprivileged"`,
		`args.env[B=C]: Invalid value: "B=C": must be the name of an environment variable`,
		`args.labels[nstance.dev/shard]: Forbidden: nstance.dev/ is the server's own`,
		`args.tmpfs[run]: Invalid value: "run": must be an absolute path`,
		`args.volumes[0]: Invalid value: "data": must be a path for an anonymous volume, or SOURCE:PATH with an optional :ro, where SOURCE is a path of the daemon's machine or the name of a volume`,
	}, providertest.Messages(o.ValidateArgs(path, map[string]any{
		"networks": "x", "image": 5, "env": map[string]any{"A": 1, "B=C": ""}, "command": []any{2}, "privileges": "all",
		"labels": map[string]any{"nstance.dev/shard": "b"}, "tmpfs": map[string]any{"run": ""}, "volumes": []any{"data"},
	})))
	assert.Len(t, o.ValidateArgs(path, map[string]any{"env": "A=B", "volumes": "/data"}), 2, "of another type")
}

func TestRoomOf(t *testing.T) {
	pool := func(subnet string) network.IPAMConfig {
		return network.IPAMConfig{Subnet: netip.MustParsePrefix(subnet)}
	}
	withGateway, withRange, withAux := pool("10.0.0.0/24"), pool("10.0.0.0/24"), pool("10.0.0.0/29")
	withGateway.Gateway = netip.MustParseAddr("10.0.0.1")
	withRange.IPRange = netip.MustParsePrefix("10.0.0.128/25")
	withRange.Gateway = netip.MustParseAddr("10.0.0.1")
	withAux.AuxAddress = map[string]netip.Addr{"a": netip.MustParseAddr("10.0.0.2")}
	for _, tc := range []struct {
		name  string
		pools []network.IPAMConfig
		used  int
		want  int
	}{
		{"a subnet", []network.IPAMConfig{pool("10.0.0.0/24")}, 0, 253},
		{"containers", []network.IPAMConfig{pool("10.0.0.0/24")}, 3, 250},
		{"a gateway", []network.IPAMConfig{withGateway}, 0, 253},
		{"a range without the gateway", []network.IPAMConfig{withRange}, 0, 128},
		{"an address in use", []network.IPAMConfig{withAux}, 0, 4},
		{"more containers than addresses", []network.IPAMConfig{withAux}, 9, 0},
		{"IPv4 and IPv6", []network.IPAMConfig{pool("10.0.0.0/24"), pool("fd00::/64")}, 0, 253},
		{"no addresses of its own", nil, 5, 1<<31 - 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := network.Inspect{Containers: map[string]network.EndpointResource{}}
			n.IPAM.Config = tc.pools
			for i := range tc.used {
				n.Containers[string(rune('a'+i))] = network.EndpointResource{}
			}
			assert.Equal(t, tc.want, roomOf(n))
		})
	}
}
