// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/config/jsonc"
	"nstance.dev/operator/pkg/server/nodesettings"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

func TestAdvertised(t *testing.T) {
	tests := []struct{ name, advertise, bound, want string }{
		{"what is advertised", "shard-a.example:443", "0.0.0.0:8993", "shard-a.example:443"},
		{"what is bound when nothing is advertised", "", "10.0.0.1:40123", "10.0.0.1:40123"},
		{"the machine for all of its addresses", "", "0.0.0.0:8993", "192.0.2.7:8993"},
		{"the machine for all of its addresses of both families", "", "[::]:8993", "192.0.2.7:8993"},
		{"the machine for no host", ":443", "10.0.0.1:8993", "192.0.2.7:443"},
		{"one address of the sixth version", "[2600:1f18::a]:8993", "[::]:1", "[2600:1f18::a]:8993"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			addresses := func(address string) Addresses { return Addresses{address, address, address, address, address} }
			shard := Shard{Advertise: addresses(tc.advertise)}
			if got := shard.Advertised(addresses(tc.bound), "192.0.2.7"); got != addresses(tc.want) {
				t.Errorf("got %+v, want %s", got, tc.want)
			}
		})
	}
	// Each address is advertised on its own.
	shard := Shard{Advertise: Addresses{OperatorAddr: "o:1"}}
	want := Addresses{"h:1", "e:1", "r:1", "o:1", ""}
	if got := shard.Advertised(Addresses{"h:1", "e:1", "r:1", "x:1", ""}, "m"); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// agentOptions are the options of a provider whose instances run an agent.
type agentOptions struct{ provider.Options }

func (agentOptions) RunsAgent() bool { return true }

// TestAProviderWithAgentsNeedsAnAddressForThem: no instance could ever register.
func TestAProviderWithAgentsNeedsAnAddressForThem(t *testing.T) {
	text := []byte(fmt.Sprintf(required, ``, ``))
	_, err := Parse(text, provider.Registry{providertest.Name: func(o *jsonc.Object) provider.Options {
		return agentOptions{providers[providertest.Name](o)}
	}})
	assert.ErrorContains(t, err, `shard.bind.agent_addr: Invalid value: "": must be host:port`)
	_, err = Parse(text, providers)
	assert.NoError(t, err, "without agents")
}

// balancerOptions are the options of a provider with load balancers and a leader network.
type balancerOptions struct{ providertest.BalancerOptions }

func (balancerOptions) ValidateLeaderNetwork(path *field.Path, network provider.Network) field.ErrorList {
	if network.InterfaceID == "" {
		return field.ErrorList{field.Required(path.Child("interface_id"), "must not be empty")}
	}
	return nil
}

func (balancerOptions) NewLeaderNetwork(provider.Shard) (provider.LeaderNetwork, error) {
	return nil, nil
}

// balancerProviders are the providers of the other tests, with load balancers and a leader
// network.
var balancerProviders = provider.Registry{providertest.Name: func(o *jsonc.Object) provider.Options {
	return balancerOptions{providertest.BalancerOptions{Options: providers[providertest.Name](o)}}
}}

// networked is the example with load balancers and a leader network.
func networked() string {
	return strings.NewReplacer(
		`"cluster":`, `"load_balancers": {"web": {"endpoint": "w"}, "api": {"endpoint": "a"}}, "cluster":`,
		`"kind": "knd"`, `"kind": "knd", "load_balancers": ["web"]`,
		`"size": 3`, `"size": 3, "load_balancers": ["api", "web"]`,
		`"subnet_pools": {`, `"leader_network": {"ip": "10.0.0.10", "interface_id": "eni-1"}, "subnet_pools": {`,
	).Replace(example)
}

func TestLoadBalancersAndLeaderNetwork(t *testing.T) {
	c, err := Parse([]byte(networked()), balancerProviders)
	require.NoError(t, err)
	assert.Equal(t, map[string]provider.LoadBalancer{
		"web": {Key: "web", Settings: providertest.BalancerSettings{Endpoint: "w"}},
		"api": {Key: "api", Settings: providertest.BalancerSettings{Endpoint: "a"}},
	}, c.LoadBalancers)
	assert.Equal(t, []string{"web"}, c.Templates["worker"].LoadBalancers)
	assert.Equal(t, []string{"api", "web"}, c.Groups["default"]["arm"].LoadBalancers)
	assert.Equal(t, &provider.Network{IP: netip.MustParseAddr("10.0.0.10"), InterfaceID: "eni-1"}, c.Shard.LeaderNetwork)
}

func TestInvalidLoadBalancersAndLeaderNetwork(t *testing.T) {
	tests := []struct{ name, old, new, want string }{
		{"field of another provider", `{"endpoint": "w"}`, `{"endpoint": "w", "target_group_arns": ["a"]}`, `load_balancers.web.target_group_arns: Invalid value: ["a"]: unknown key, allowed are endpoint, other_endpoints`},
		{"field that is missing", `{"endpoint": "w"}`, `{}`, `load_balancers.web.endpoint: Required value: must not be empty`},
		{"entry of another type", `{"endpoint": "w"}`, `"w"`, `load_balancers.web: Invalid value: "w": must be an object`},
		{"key", `"web": {"endpoint": "w"}`, `"web": {"endpoint": "w"}, "a--b": {"endpoint": "b"}`, `load_balancers.a--b: Invalid value: "a--b": "a--b" must not contain consecutive hyphens`},
		{"load balancer of a template", `"load_balancers": ["web"]`, `"load_balancers": ["none"]`, `templates.worker.load_balancers[0]: Invalid value: "none": unknown load balancer, known are "api", "web"`},
		{"load balancer of a group", `["api", "web"]`, `["api", "none"]`, `groups.default.arm.load_balancers[1]: Invalid value: "none": unknown load balancer, known are "api", "web"`},
		{"load balancer given twice", `["api", "web"]`, `["api", "api"]`, `groups.default.arm.load_balancers[1]: Duplicate value: "api"`},
		{"load balancers of another type", `["api", "web"]`, `"api"`, `groups.default.arm.load_balancers: Invalid value: "api": must be a list of strings`},
		{"no address", `"ip": "10.0.0.10", `, ``, `shard.leader_network.ip: Required value: must not be empty`},
		{"address that is none", `"10.0.0.10"`, `"10.0.0"`, `shard.leader_network.ip: Invalid value: "10.0.0": must be the IP address of one machine, such as "10.0.0.10"`},
		{"address of all machines", `"10.0.0.10"`, `"0.0.0.0"`, `shard.leader_network.ip: Invalid value: "0.0.0.0": must be the IP address of one machine`},
		{"interface of the provider", `"eni-1"`, `""`, `shard.leader_network.interface_id: Required value: must not be empty`},
		{"unknown field of the network", `"interface_id": "eni-1"`, `"interface_id": "eni-1", "mask": 24`, `shard.leader_network.mask: Invalid value: 24: unknown key, allowed are interface_id, ip`},
		{"listener at one address", `"[::]:8993"`, `"10.0.0.10:8993"`, `shard.bind.operator_addr: Invalid value: "10.0.0.10:8993": must have the host 0.0.0.0 or :: with shard.leader_network`},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			text := networked()
			require.Contains(t, text, tc.old)
			_, err := Parse([]byte(strings.Replace(text, tc.old, tc.new, 1)), balancerProviders)
			require.Error(t, err)
			assert.True(t, strings.HasPrefix(err.Error(), tc.want) && !strings.Contains(err.Error(), "\n"), "got  %s\nwant %s", err, tc.want)
		})
	}
}

// A provider without load balancers and leader network rejects both.
func TestProviderWithoutLoadBalancers(t *testing.T) {
	_, err := Parse([]byte(networked()), providers)
	require.Error(t, err)
	assert.Contains(t, err.Error(), `load_balancers: Invalid value: ["api","web"]: must not be set: provider "fake" has no load balancers`)
	assert.Contains(t, err.Error(), `shard.leader_network: Invalid value: "10.0.0.10": must not be set: provider "fake" has no leader network`)
}

func TestLeaderNetworkNeedsARestart(t *testing.T) {
	parse := func(text string) *Config {
		c, err := Parse([]byte(text), balancerProviders)
		require.NoError(t, err)
		return c
	}
	with, without := parse(networked()), parse(example)
	moved := parse(strings.Replace(networked(), "10.0.0.10", "10.0.0.11", 1))
	assert.Empty(t, with.CheckReplacement(with))
	for name, next := range map[string]*Config{"another address": moved, "no address": without} {
		assert.NotEmpty(t, with.CheckReplacement(next), name)
	}
	assert.NotEmpty(t, without.CheckReplacement(with), "an address that is added")
	// Load balancers change while the server runs.
	other := parse(strings.Replace(networked(), `{"endpoint": "w"}`, `{"endpoint": "x"}`, 1))
	assert.Empty(t, with.CheckReplacement(other))
}

// Operators, agents and registering clients reach the leader at its address, and other
// servers reach this server at its own.
func TestAdvertisedWithALeaderNetwork(t *testing.T) {
	c, err := Parse([]byte(networked()), balancerProviders)
	require.NoError(t, err)
	c.Shard.Advertise = Addresses{RegistrationAddr: "shard-a.example:443"}
	assert.Equal(t, Addresses{
		HealthAddr: "10.0.0.7:8990", ElectionAddr: "10.0.0.7:8991",
		RegistrationAddr: "shard-a.example:443", OperatorAddr: "10.0.0.10:8993", AgentAddr: "10.0.0.10:8994",
	}, c.Shard.Advertised(c.Shard.Bind, "10.0.0.7"))
}

// TestNodeSettings: templates and static groups have settings of Nodes.
func TestNodeSettings(t *testing.T) {
	c, err := Parse([]byte(strings.NewReplacer(
		`"kind": "knd"`, `"kind": "knd", "node": {"labels": {"a": "1"}, "max_pods": 20}`,
		`"size": 3`, `"size": 3, "node": {"taints": [{"key": "b", "value": "2", "effect": "NoSchedule"}]}`,
	).Replace(example)), providers)
	require.NoError(t, err)
	assert.Equal(t, nodesettings.Settings{Labels: map[string]string{"a": "1"}, MaxPods: 20}, c.Templates["worker"].Node)
	assert.Equal(t, nodesettings.Settings{Taints: []nodesettings.Taint{{Key: "b", Value: "2", Effect: "NoSchedule"}}}, c.Groups["default"]["arm"].Node)
	assert.Equal(t, nodesettings.Settings{}, c.Groups["default"]["main"].Node)
}
