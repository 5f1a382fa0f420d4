// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"os"
	"path/filepath"
	"testing"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// The groups of the tests: main and plain are static, others are dynamic.
var (
	main    = instance.GroupKey{Tenant: "default", Group: "main"}
	plain   = instance.GroupKey{Tenant: "default", Group: "plain"}
	dynamic = instance.GroupKey{Tenant: "default", Group: "dynamic"}
)

// Parts of the configuration, so that a test can have a shard without some.
const (
	templates = `{
		"worker": {"kind": "knd", "arch": "amd64", "size": 2, "instance_type": "m7i.large", "subnet_pool": "open", "vars": {"role": "worker", "tier": "one"}},
		"arm": {"kind": "arm", "arch": "arm64", "instance_type": "m7g.large", "subnet_pool": "closed"},
		"bare": {"kind": "bar", "arch": "amd64"},
	}`
	static = `{"default": {
		"main": {"template": "worker", "size": 3, "instance_type": "c7i.large", "subnet_pool": "closed", "vars": {"role": "main", "own": "yes"}},
		"plain": {"template": "worker"},
	}}`
	pools = `{"open": ["subnet-a"], "other": ["subnet-b"], "closed": ["subnet-c"]}`
)

// newConfig returns the configuration of a shard in which dynamic groups may
// have the pools open and other, not closed.
func newConfig(t *testing.T, static string) *config.Config {
	t.Helper()
	c, err := config.Parse([]byte(`{
		"cluster": {"id": "test"},
		"shard": {
			"id": "us-west-2a",
			"infra": {"provider": "kwok", "region": "us-west-2", "zone": "us-west-2a", "options": {"kubeconfig": "k"}},
			"bind": {"health_addr": ":0", "operator_addr": ":0"},
			"tls": {"ca": "ca", "cert": "cert", "key": "key"},
			"subnet_pools": `+pools+`,
			"dynamic_subnet_pools": ["open", "other"],
		},
		"templates": `+templates+`,
		"groups": `+static+`,
	}`), "")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// open opens the store of folder dir with the usual configuration.
func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), newConfig(t, static), dir)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// upsert makes a change that must succeed.
func upsert(t *testing.T, s *Store, key instance.GroupKey, change Change) *Group {
	t.Helper()
	group, _, err := s.Upsert(key, change)
	if err != nil {
		t.Fatal(err)
	}
	return group
}

// get returns a group that must exist.
func get(t *testing.T, s *Store, key instance.GroupKey) *Group {
	t.Helper()
	group, found := s.Get(key)
	if !found {
		t.Fatalf("there is no group %s", key)
	}
	return group
}

// readFile returns the groups file of folder dir, "" when there is none.
func readFile(t *testing.T, dir string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "us-west-2a.jsonc"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(data)
}

func writeFile(t *testing.T, dir, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "us-west-2a.jsonc"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
