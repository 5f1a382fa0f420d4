// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	_ "embed"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// example has every key.
//
//go:embed testdata/example.jsonc
var example string

// providers has a fake provider with some instance types.
var providers = providertest.Providers(types...)

var types = []provider.InstanceType{
	{Name: "c7i.2xlarge", Arch: provider.ArchAMD64},
	{Name: "m7i.large", Arch: provider.ArchAMD64},
	{Name: "tiny", Arch: provider.ArchARM64},
}

// parsed returns the configuration of a text that must be valid.
func parsed(t *testing.T, text string) *Config {
	t.Helper()
	c, err := Parse([]byte(text), providers)
	require.NoError(t, err)
	return c
}

func TestParseReadsEveryKey(t *testing.T) {
	catalogue := provider.Catalogue{}
	for _, t := range types {
		catalogue[t.Name] = t
	}
	want := &Config{
		ClusterID:       "prod",
		ClusterElection: Election{Enabled: false, Interval: time.Second, Timeout: 4 * time.Second},
		Secrets: Secrets{
			Provider:          SecretsInStorage,
			EncryptionKey:     KeySource{Env: "NSTANCE_KEY"},
			OldEncryptionKeys: []KeySource{{File: "/etc/nstance/old.key"}, {Env: "NSTANCE_OLDER_KEY"}},
		},
		Shard: Shard{
			ID: "us-west-2a",
			Infra: Infra{
				Provider: "fake", Region: "us-west-2", Zone: "us-west-2a",
				Options: &providertest.Options{Endpoint: "/etc/endpoint", InstanceTypes: catalogue}, InstanceTypes: catalogue,
			},
			Election:            Election{Enabled: true, Interval: 2 * time.Second, Timeout: 6 * time.Second},
			Bind:                Addresses{HealthAddr: "0.0.0.0:8990", ElectionAddr: "0.0.0.0:8991", RegistrationAddr: "0.0.0.0:8992", OperatorAddr: "[::]:8993", AgentAddr: "[::]:8994"},
			Advertise:           Addresses{HealthAddr: ":8080", ElectionAddr: "10.0.0.1:8991", RegistrationAddr: "shard-a.example:443", OperatorAddr: "[2600:1f18::a]:8993", AgentAddr: "shard-a.example:8994"},
			SubnetPools:         map[string][]string{"default": {"subnet-a", "subnet-b"}, "extra": {"subnet-c"}},
			DynamicSubnetPools:  []string{"default"},
			Expiry:              Expiry{EligibleAge: 21 * 24 * time.Hour, ForcedAge: 720 * time.Hour, OnDemandAge: 7 * 24 * time.Hour},
			DefaultDrainTimeout: 4 * time.Minute,
			MaxSize:             500,
			MaxCallsPerSecond:   ptr.To[int32](2000),
			CreateRateLimit:     time.Second,
			GarbageCollection:   GarbageCollection{Interval: 3 * time.Minute, RegistrationTimeout: 6 * time.Minute, DeletedRecordRetention: 31 * time.Minute},
			RestartGrace:        3 * time.Minute,
			HealthCheckInterval: 45 * time.Second,
			RequestTimeout:      29 * time.Second,
			ShutdownTimeout:     9 * time.Second,
		},
		OperatorCertificateTTL: 48 * time.Hour,
		AgentCertificateTTL:    36 * time.Hour,
		Defaults: Defaults{
			Userdata: Userdata{Inline: "#!/bin/sh\necho {{.Nonce}}\n"},
			Vars:     map[string]string{"tier": "none"},
			Args:     map[string]any{"labels": map[string]any{"tier": "{{.Vars.tier}}"}},
			Files: map[string]File{"app.json": {Kind: "json", Content: map[string]any{
				"json": map[string]any{"replicas": 3.0, "on": true, "list": []any{"a", nil}},
			}}},
		},
		Templates: map[string]Template{
			"worker": {
				Kind: "knd", Arch: "amd64", Size: 1, InstanceType: "m7i.large", SubnetPool: "default",
				Userdata: Userdata{URL: "https://example.com/userdata", Encoding: EncodingGzipBase64},
				Vars:     map[string]string{"role": "worker"},
				Args: map[string]any{
					"labels":      map[string]any{"example.com/Role": "worker"},
					"annotations": map[string]any{"Example.com/Note": "any text at all"},
				},
				Files: map[string]File{"app.env": {Kind: "env", Content: map[string]any{"env": map[string]any{"ROLE": "{{.Vars.role}}"}}}},
			},
			"bare": {Kind: "bar", Arch: "arm64", Size: 0},
		},
		Groups: map[string]map[string]Group{
			"default": {
				"main": {Template: "worker"},
				"arm": {
					Template: "bare", Size: ptr.To[int32](3), InstanceType: "tiny", SubnetPool: "extra", Vars: map[string]string{"a": "b"},
					Args: map[string]any{"annotations": map[string]any{"group": "arm"}}, DrainTimeout: ptr.To(90 * time.Second), KeepUnhealthy: true,
				},
			},
			"empty": {},
		},
	}
	if diff := cmp.Diff(want, parsed(t, example)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// required has the mandatory keys, and the keys beside which %s can be put: more of the
// shard, and more of all.
const required = `{
	"cluster": {"id": "prod", "secrets": {"encryption_key": {"env": "KEY"}}},
	"shard": {
		"id": "a",
		"infra": {"provider": "fake", "region": "r", "zone": "z", "options": {"endpoint": "e"}},
		"bind": {"health_addr": ":0", "election_addr": ":0", "registration_addr": ":0", "operator_addr": ":0"},
		"subnet_pools": {"p": ["s"]},
		%s
	},
	%s
}`

func TestParseFillsInDefaults(t *testing.T) {
	c := parsed(t, fmt.Sprintf(required, ``, ``))
	election := Election{Enabled: true, Interval: 5 * time.Second, Timeout: 15 * time.Second}
	if c.ClusterElection != election || c.Shard.Election != election {
		t.Errorf("the elections are %v and %v, want %v", c.ClusterElection, c.Shard.Election, election)
	}
	if want := (GarbageCollection{2 * time.Minute, 5 * time.Minute, 30 * time.Minute}); c.Shard.GarbageCollection != want {
		t.Errorf("garbage collection is %v, want %v", c.Shard.GarbageCollection, want)
	}
	if c.Shard.Expiry != (Expiry{}) || c.Shard.CreateRateLimit != 0 {
		t.Errorf("expiry is %v and the rate limit %s, want none", c.Shard.Expiry, c.Shard.CreateRateLimit)
	}
	times := []time.Duration{c.Shard.RestartGrace, c.Shard.DefaultDrainTimeout, c.Shard.RequestTimeout, c.Shard.ShutdownTimeout, c.OperatorCertificateTTL, c.AgentCertificateTTL, c.Shard.HealthCheckInterval}
	if want := []time.Duration{5 * time.Minute, 5 * time.Minute, 30 * time.Second, 10 * time.Second, 24 * time.Hour, 24 * time.Hour, time.Minute}; !slices.Equal(times, want) {
		t.Errorf("got %s, want %s", times, want)
	}
}

// TestZeroIsNotMissing: a configured zero is not replaced by a default.
func TestZeroIsNotMissing(t *testing.T) {
	c := parsed(t, fmt.Sprintf(required, `
		"default_drain_timeout": "0s", "shutdown_timeout": "0", "create_rate_limit": "0s",
		"garbage_collection": {"interval": "0s", "registration_timeout": "0s", "deleted_record_retention": "0d"},
		"expiry": {"eligible_age": "0s", "forced_age": "0s", "ondemand_age": "0s"},`, `
		"certificates": {"operator": {}},
		"templates": {"t": {"kind": "knd", "arch": "amd64", "size": 0, "instance_type": "m7i.large", "subnet_pool": "p"}},
		"groups": {"default": {
			"zero": {"template": "t", "size": 0, "drain_timeout": "0s"},
			"missing": {"template": "t"},
		}}`))
	if s := c.Shard; s.DefaultDrainTimeout != 0 || s.ShutdownTimeout != 0 || s.GarbageCollection != (GarbageCollection{}) || s.Expiry != (Expiry{}) {
		t.Errorf("got %+v, want zeros", s)
	}
	zero, missing := c.Groups["default"]["zero"], c.Groups["default"]["missing"]
	if zero.Size == nil || *zero.Size != 0 || zero.DrainTimeout == nil || *zero.DrainTimeout != 0 {
		t.Errorf("got group %+v, want zeros", zero)
	}
	if missing.Size != nil || missing.DrainTimeout != nil {
		t.Errorf("got group %+v, want nothing set", missing)
	}
	if c.OperatorCertificateTTL != 24*time.Hour {
		t.Errorf("a missing ttl is %s", c.OperatorCertificateTTL)
	}
}

// TestGarbageCollectionIsOffByParts: if one of the two is off, the other is not compared with
// it.
func TestGarbageCollectionIsOffByParts(t *testing.T) {
	parsed(t, fmt.Sprintf(required, `"garbage_collection": {"interval": "1h", "registration_timeout": "0s"},`, ``))
	parsed(t, fmt.Sprintf(required, `"garbage_collection": {"interval": "0s", "registration_timeout": "1s"},`, ``))
	parsed(t, fmt.Sprintf(required, `"expiry": {"eligible_age": "1h", "forced_age": "0s"},`, ``))
}

// TestEqualUserdataReadsEqual: both forms must have the same digest.
func TestEqualUserdataReadsEqual(t *testing.T) {
	for _, userdata := range []string{`"x"`, `{"inline": "x"}`, `{"inline": "x", "encoding": "plain"}`, `{"inline": "x", "url": "", "encoding": ""}`} {
		c := parsed(t, fmt.Sprintf(required, ``, `"defaults": {"userdata": `+userdata+`}`))
		if want := (Userdata{Inline: "x"}); c.Defaults.Userdata != want {
			t.Errorf("%s reads as %+v, want %+v", userdata, c.Defaults.Userdata, want)
		}
	}
}

// TestEmptyIsMissing: an object without members has the same digest as a missing object.
func TestEmptyIsMissing(t *testing.T) {
	c := parsed(t, fmt.Sprintf(required, ``, `"defaults": {"userdata": "", "vars": {}, "args": {}, "files": {}}`))
	if diff := cmp.Diff(Defaults{}, c.Defaults); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
