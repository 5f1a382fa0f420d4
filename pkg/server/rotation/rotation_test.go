// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package rotation_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/rotation"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/file"
)

const agentID = "knd06bgm7733st2576nx5jht4ecjx"

// cluster is the storage of a cluster with one shard, an operator and an agent.
type cluster struct {
	t       *testing.T
	store   storage.Store
	secrets secrets.Store
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	store, err := file.Open(t.TempDir())
	require.NoError(t, err)
	encrypted, err := secrets.New(store, bytes.Repeat([]byte{7}, 32))
	require.NoError(t, err)
	_, err = clusterkeys.Ensure(t.Context(), store, encrypted, "prod")
	require.NoError(t, err)
	_, err = store.Create(t.Context(), "config/us-west-2a.jsonc", []byte("{}"))
	require.NoError(t, err)
	return &cluster{t, store, encrypted}
}

func (c *cluster) accepted() []string {
	c.t.Helper()
	loaded, err := clusterkeys.Load(c.t.Context(), c.store, c.secrets)
	require.NoError(c.t, err)
	return loaded.Authority.Fingerprints()
}

// load stores that a server has loaded authorities.
func (c *cluster) load(server string, fingerprints []string) {
	c.t.Helper()
	require.NoError(c.t, clusterkeys.StoreLoaded(c.t.Context(), c.store, "us-west-2a", server, fingerprints))
}

// operator stores the registration of an operator.
func (c *cluster) operator(trust *pki.Trust, expires time.Time) {
	c.t.Helper()
	public, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(c.t, err)
	require.NoError(c.t, registration.RecordIssued(c.t.Context(), c.store, pki.Client{ID: "prod", Tenant: "default", Role: pki.RoleOperator},
		&x509.Certificate{PublicKey: public, SerialNumber: big.NewInt(12), NotAfter: expires}, trust))
}

// agent stores the record of an instance with an agent.
func (c *cluster) agent(trust *pki.Trust) {
	c.t.Helper()
	data, err := json.Marshal(instance.Record{
		ID: agentID, Tenant: "default", Group: "main",
		Registration: &instance.Registration{CertSerial: "c", ExpiresAt: time.Now().Add(24 * time.Hour), Trust: trust},
	})
	require.NoError(c.t, err)
	const key = "instance/us-west-2a/default.a.json"
	require.NoError(c.t, c.store.Delete(c.t.Context(), key))
	_, err = c.store.Create(c.t.Context(), key, data)
	require.NoError(c.t, err)
}

// names returns who is behind after a time.
func (c *cluster) names(after time.Duration) []string {
	c.t.Helper()
	behind, err := rotation.Check(c.t.Context(), c.store, time.Now().Add(after))
	require.NoError(c.t, err)
	names := []string{}
	for _, b := range behind {
		names = append(names, b.Name)
	}
	return names
}

const (
	agent    = "agent/us-west-2a/" + agentID
	operator = "operator/default/prod"
)

func TestWhoIsBehind(t *testing.T) {
	c := newCluster(t)
	tomorrow := time.Now().Add(24 * time.Hour)
	c.operator(nil, tomorrow)
	c.agent(nil)
	assert.Empty(t, c.names(0), "without a replacement")

	require.NoError(t, clusterkeys.Begin(t.Context(), c.store, c.secrets))
	assert.Equal(t, []string{agent, operator, "shard/us-west-2a"}, c.names(0), "clients that do not say what they trust")
	accepted := c.accepted()
	old, next := accepted[0], accepted[1]
	c.load("1", accepted)
	c.load("2", accepted[:1])
	assert.Equal(t, []string{agent, rotation.Booting, operator, "server/us-west-2a/2"}, c.names(0))
	c.load("2", accepted)
	c.agent(&pki.Trust{Issuer: old, Authorities: []string{old}})
	assert.Equal(t, []string{agent, operator}, c.names(10*time.Minute))
	both := []string{old, next}
	c.agent(&pki.Trust{Issuer: old, Authorities: both})
	assert.Equal(t, []string{operator}, c.names(10*time.Minute))
	c.operator(nil, time.Now())
	assert.Empty(t, c.names(10*time.Minute), "the certificate has expired")
	c.operator(&pki.Trust{Issuer: old, Authorities: both}, tomorrow)
	assert.Empty(t, c.names(10*time.Minute))

	require.NoError(t, clusterkeys.Switch(t.Context(), c.store))
	assert.Equal(t, []string{agent, operator, "server/us-west-2a/1", "server/us-west-2a/2"}, c.names(0))
	c.load("1", c.accepted())
	c.load("2", c.accepted())
	c.agent(&pki.Trust{Issuer: next, Authorities: both})
	c.operator(&pki.Trust{Issuer: next, Authorities: both}, tomorrow)
	assert.Empty(t, c.names(0))
}

// A nonce issuer needs a certificate of the new authority before the old one is refused.
func TestNonceIssuersAreBehind(t *testing.T) {
	c := newCluster(t)
	issue := func() {
		t.Helper()
		loaded, err := clusterkeys.Load(t.Context(), c.store, c.secrets)
		require.NoError(t, err)
		certificate, key, err := registration.NewNonceIssuer(loaded.Authority, pki.NonceIssuer{Name: "ci", Tenants: []string{"a"}, Roles: []string{pki.RoleOperator}}, time.Hour)
		require.NoError(t, err)
		_, err = registration.AddNonceIssuer(t.Context(), c.store, c.secrets, loaded.Authority, certificate, key)
		require.NoError(t, err)
	}
	issue()
	require.NoError(t, clusterkeys.Begin(t.Context(), c.store, c.secrets))
	c.load("1", c.accepted())
	assert.Empty(t, c.names(10*time.Minute), "there is no certificate of the next authority yet")
	require.NoError(t, clusterkeys.Switch(t.Context(), c.store))
	c.load("1", c.accepted())
	assert.Equal(t, []string{"nonce-issuer/ci"}, c.names(0))
	assert.Empty(t, c.names(2*time.Hour), "its certificate has expired")
	issue()
	assert.Empty(t, c.names(0))
	_, err := registration.RevokeNonceIssuer(t.Context(), c.store, "ci", "")
	require.NoError(t, err)
	assert.Empty(t, c.names(0), "it is revoked")
}

func TestOnlyThoseThatTheUserNamesAreLeftBehind(t *testing.T) {
	behind := []rotation.Behind{{Name: operator, Reason: "does not say"}, {Name: agent, Reason: "does not trust"}}
	require.NoError(t, rotation.Without(behind, []string{agent, operator}))
	require.NoError(t, rotation.Without(nil, nil))
	err := rotation.Without(behind, []string{agent})
	require.ErrorIs(t, err, rotation.ErrBehind)
	assert.ErrorContains(t, err, operator+" does not say")
	assert.NotContains(t, err.Error(), agent)
}
