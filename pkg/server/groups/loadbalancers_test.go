// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// withBalancers returns a configuration with load balancers, one of which the template
// worker has.
func withBalancers(static map[string]config.Group, keys ...string) *config.Config {
	c := newConfigWith(static)
	c.LoadBalancers = map[string]provider.LoadBalancer{}
	for _, key := range keys {
		c.LoadBalancers[key] = provider.LoadBalancer{Key: key}
	}
	worker := c.Templates["worker"]
	worker.LoadBalancers = []string{"web"}
	c.Templates["worker"] = worker
	return c
}

func TestLoadBalancersOfGroups(t *testing.T) {
	c := withBalancers(map[string]config.Group{
		"of-template": {Template: "worker"},
		"own":         {Template: "worker", LoadBalancers: []string{"api"}},
		"none":        {Template: "worker", LoadBalancers: []string{}},
		"bare":        {Template: "bare", InstanceType: "t3.large", SubnetPool: "open"},
	}, "web", "api")
	s := openWith(t, newStorage(t), c)
	dynamic := instance.GroupKey{Tenant: "default", Group: "dynamic"}
	upsert(t, s, dynamic, Change{Settings: Settings{Template: "worker"}, Size: 1})
	for name, want := range map[string][]string{"of-template": {"web"}, "own": {"api"}, "none": {}, "bare": nil, "dynamic": {"web"}} {
		assert.Equal(t, want, get(t, s, instance.GroupKey{Tenant: "default", Group: name}).LoadBalancers, name)
	}
}

// A static group that the configuration drops keeps its load balancers, also after a
// restart, except those that the configuration drops too.
func TestLoadBalancersOfADroppedGroup(t *testing.T) {
	static := map[string]config.Group{
		"own":         {Template: "worker", LoadBalancers: []string{"api", "old"}},
		"none":        {Template: "worker", LoadBalancers: []string{}},
		"of-template": {Template: "worker"},
	}
	store := newStorage(t)
	s := openWith(t, store, withBalancers(static, "web", "api", "old"))
	check := func(s *Store, own ...string) {
		t.Helper()
		for name, want := range map[string][]string{"own": own, "none": {}, "of-template": {"web"}} {
			assert.Equal(t, want, get(t, s, instance.GroupKey{Tenant: "default", Group: name}).LoadBalancers, name)
		}
	}
	next := withBalancers(nil, "web", "api", "old")
	require.NoError(t, s.Reconfigure(t.Context(), next))
	check(s, "api", "old")
	check(openWith(t, store, next), "api", "old")
	require.NoError(t, s.Reconfigure(t.Context(), withBalancers(nil, "web", "api")))
	check(s, "api")
}

// A change of the load balancers is a change of the group that replaces no instance.
func TestLoadBalancersChangeTheETagOnly(t *testing.T) {
	group := sample()
	before := withHashes(t, group)
	group.LoadBalancers = []string{"web"}
	after := withHashes(t, group)
	assert.NotEqual(t, before.ETag, after.ETag)
	assert.Equal(t, before.InfraConfigHash, after.InfraConfigHash)
	assert.Equal(t, before.RuntimeConfigHash, after.RuntimeConfigHash)
}
