// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provision

import (
	"crypto/ed25519"
	_ "embed"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage/file"
)

// instanceID is the id in the record of most tests.
const instanceID = "knc06bgm7733st2576nx5jht4ecjw"

// configuration is the configuration of a shard with the group main.
//
//go:embed testdata/config.jsonc
var configuration string

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
	require.NoError(t, err)
	return c
}

// newGroup returns a group of the configuration, everything merged.
func newGroup(t *testing.T, c *config.Config, name string) *groups.Group {
	t.Helper()
	store, err := file.Open(t.TempDir())
	require.NoError(t, err)
	opened, err := groups.Open(t.Context(), nil, c, store)
	require.NoError(t, err)
	group, found := opened.Get(instance.GroupKey{Tenant: "default", Group: name})
	require.True(t, found, "there is no group %s", name)
	return group
}

// newRecord returns the record of a managed instance of group main.
func newRecord() *instance.Record {
	return &instance.Record{
		ID: instanceID, Tenant: "default", Group: "main",
		CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
}

// nonces signs nonces like a server, and keeps them.
type nonces struct {
	*registration.NonceSigner
	key    ed25519.PublicKey
	signed []string
	err    error
}

func (n *nonces) Agent(a registration.AgentNonce) (string, error) {
	if n.err != nil {
		return "", n.err
	}
	token, err := n.NonceSigner.Agent(a)
	n.signed = append(n.signed, token)
	return token, err
}

// newProvisioner returns a Provisioner for the configuration c.
func newProvisioner(t *testing.T, c *config.Config) (*Provisioner, *nonces) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	n := &nonces{NonceSigner: registration.NewNonceSigner(private), key: public}
	return New(Options{
		Config:       func() *config.Config { return c },
		Addresses:    config.Addresses{RegistrationAddr: "10.0.0.1:8992", OperatorAddr: "10.0.0.1:8993", AgentAddr: "10.0.0.1:8994"},
		AuthorityPEM: func() []byte { return []byte("-----BEGIN CERTIFICATE-----\n") },
		Nonces:       n,
	}), n
}
