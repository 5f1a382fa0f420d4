// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"crypto/ed25519"
	"strings"
	"testing"
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/registration/nonce"
	"nstance.dev/operator/pkg/server/storage/file"
)

// instanceID is that of the record of most tests.
const instanceID = "knc06bgm7733st2576nx5jht4ecjw"

// configuration is that of a shard with the group main.
const configuration = `{
	"cluster": {"id": "prod", "secrets": {"encryption_key": {"env": "KEY"}}},
	"shard": {
		"id": "us-west-2a",
		"infra": {"provider": "fake", "region": "us-west-2", "zone": "us-west-2z", "options": {"endpoint": "e"}},
		"bind": {"health_addr": ":0", "election_addr": ":0", "registration_addr": ":0", "operator_addr": ":0"},
		"subnet_pools": {"default": ["subnet-a"], "gpus": ["subnet-b"], "extra": ["subnet-c"]},
	},
	"defaults": {
		"userdata": "{{.Instance.ID}} {{.Nonce}}",
		"vars": {"from": "defaults", "defaults": "yes"},
		"args": {"labels": {"from": "defaults", "defaults": "yes"}},
		"files": {"a.txt": {"kind": "string", "text": "a"}},
	},
	"templates": {
		"worker": {
			"kind": "knc", "arch": "amd64", "instance_type": "m7i.large", "subnet_pool": "default",
			"vars": {"from": "worker", "worker": "yes"},
			"args": {"labels": {"from": "worker", "worker": "yes"}},
		},
		"gpu": {
			"kind": "gpu", "arch": "arm64", "instance_type": "m7g.large", "subnet_pool": "gpus",
			"vars": {"from": "gpu", "gpu": "yes"},
			"args": {"labels": {"from": "gpu", "gpu": "yes"}},
			"userdata": "gpu {{.Instance.ID}} {{.Nonce}}",
			"files": {"b.txt": {"kind": "string", "text": "b"}},
		},
		"silent": {"kind": "sil", "arch": "amd64"},
	},
	"groups": {"default": {
		"main": {"template": "worker", "vars": {"main": "yes"}, "args": {"labels": {"main": "yes"}}},
		"own": {
			"template": "worker", "instance_type": "c7i.large", "subnet_pool": "extra",
			"vars": {"from": "own"}, "args": {"labels": {"from": "own"}, "annotations": {"own": "yes"}},
		},
	}},
}`

// types returns the sizes of some families, those on arm64 end in g.
func types() []provider.InstanceType {
	var types []provider.InstanceType
	for _, family := range []string{"c7i", "m7i", "r7i", "m7g", "r7g", "t4g"} {
		for _, size := range []string{"2xlarge", "large"} {
			arch := provider.ArchAMD64
			if strings.HasSuffix(family, "g") {
				arch = provider.ArchARM64
			}
			types = append(types, provider.InstanceType{Name: family + "." + size, Arch: arch})
		}
	}
	return types
}

// newConfig returns the configuration in force in most tests.
func newConfig(t *testing.T) *config.Config {
	t.Helper()
	c, err := config.Parse([]byte(configuration), providertest.Providers(types()...))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// newGroup returns a group of the configuration, everything merged.
func newGroup(t *testing.T, c *config.Config, name string) *groups.Group {
	t.Helper()
	store, err := file.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	opened, err := groups.Open(t.Context(), c, store)
	if err != nil {
		t.Fatal(err)
	}
	group, found := opened.Get(instance.GroupKey{Tenant: "default", Group: name})
	if !found {
		t.Fatalf("there is no group %s", name)
	}
	return group
}

// newRecord returns the record of a managed instance of group main.
func newRecord() *instance.Record {
	return &instance.Record{
		ID: instanceID, Tenant: "default", Group: "main",
		CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
}

// nonces signs for real, and keeps what it signed.
type nonces struct {
	*nonce.Signer
	key    ed25519.PublicKey
	signed []string
	err    error
}

func (n *nonces) Agent(a nonce.Agent) (string, error) {
	if n.err != nil {
		return "", n.err
	}
	token, err := n.Signer.Agent(a)
	n.signed = append(n.signed, token)
	return token, err
}

// newProvisioner returns one for the configuration c.
func newProvisioner(t *testing.T, c *config.Config) (*Provisioner, *nonces) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	n := &nonces{Signer: nonce.NewSigner(private), key: public}
	return New(Options{
		Config:       func() *config.Config { return c },
		Addresses:    config.Addresses{RegistrationAddr: "10.0.0.1:8992", OperatorAddr: "10.0.0.1:8993"},
		AuthorityPEM: []byte("-----BEGIN CERTIFICATE-----\n"),
		Nonces:       n,
	}), n
}
