// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"crypto/ed25519"
	"encoding/base64"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/server/registration"
)

const instanceID = "knc06bgm7733st2576nx5jht4ecjw"

func open(t *testing.T, folder string) *Identity {
	t.Helper()
	i, err := Open(folder, 0o600, instanceID)
	require.NoError(t, err)
	return i
}

// newIdentity returns an identity that trusts the authority.
func newIdentity(t *testing.T, authority *pki.Authority) *Identity {
	t.Helper()
	i := open(t, t.TempDir())
	require.NoError(t, os.WriteFile(i.path(caFile), authority.CertificatePEM(), 0o600))
	return i
}

func public(t *testing.T, i *Identity) ed25519.PublicKey {
	t.Helper()
	key, err := i.Key()
	require.NoError(t, err)
	return key.Public().(ed25519.PublicKey)
}

// sign returns a certificate for the key of the identity.
func sign(t *testing.T, authority *pki.Authority, i *Identity, id string, ttl time.Duration) []byte {
	t.Helper()
	leaf, err := authority.SignClient(pki.Client{ID: id, Tenant: "default", Role: pki.RoleAgent}, public(t, i), ttl)
	require.NoError(t, err)
	return pki.EncodeCertificate(leaf)
}

func TestKeyIsCreatedOnce(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "agent", "identity")
	i := open(t, folder)
	key := public(t, i)
	assert.True(t, key.Equal(public(t, i)))
	assert.True(t, key.Equal(public(t, open(t, folder))))
	for _, name := range []string{keyFile, publicKeyFile} {
		info, err := os.Stat(i.path(name))
		require.NoError(t, err)
		assert.Equal(t, fs.FileMode(0o600), info.Mode(), name)
	}
	info, err := os.Stat(folder)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o700), info.Mode().Perm())

	// The process ended between the two files.
	before, err := os.ReadFile(i.path(publicKeyFile))
	require.NoError(t, err)
	require.NoError(t, os.Remove(i.path(publicKeyFile)))
	assert.True(t, key.Equal(public(t, i)))
	after, err := os.ReadFile(i.path(publicKeyFile))
	require.NoError(t, err)
	assert.Equal(t, string(before), string(after))

	// A key that cannot be read is not replaced: it may be the registered key.
	require.NoError(t, os.WriteFile(i.path(keyFile), []byte("SECRET"), 0o600))
	_, err = i.Key()
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "SECRET")
}

func TestCertificateMustBelongToTheInstance(t *testing.T) {
	authority, other := pkitest.NewAuthority(t), pkitest.NewAuthority(t)
	i := newIdentity(t, authority)
	certificate, err := i.Certificate()
	require.NoError(t, err)
	assert.Nil(t, certificate)

	otherKey := newIdentity(t, authority)
	public(t, i)
	for name, test := range map[string]struct {
		certPEM []byte
		want    string
	}{
		"of another instance":  {sign(t, authority, i, "knc06bgm7733st2576nx5jht4ecjx", time.Hour), "it is for instance"},
		"of another authority": {sign(t, other, i, instanceID, time.Hour), "verify"},
		"of another key":       {sign(t, authority, otherKey, instanceID, time.Hour), "not for the key"},
		"expired":              {sign(t, authority, i, instanceID, -time.Second), "expired"},
		"not a certificate":    {[]byte("x"), "no PEM block"},
		"empty":                {nil, "no PEM block"},
	} {
		assert.ErrorContains(t, i.SetCertificate(test.certPEM), test.want, name)
	}
	certificate, err = i.Certificate()
	require.NoError(t, err)
	assert.Nil(t, certificate)

	begin := time.Now().Add(-time.Second)
	require.NoError(t, i.SetCertificate(sign(t, authority, i, instanceID, time.Hour)))
	certificate, err = i.Certificate()
	require.NoError(t, err)
	assert.Equal(t, instanceID, certificate.Leaf.Subject.CommonName)
	assert.False(t, certificate.Issued.Before(begin), "it was issued at %s", certificate.Issued)
	assert.False(t, certificate.Expired(time.Now()))
	assert.True(t, certificate.Expired(time.Now().Add(time.Hour)))

	// An identity that was copied from another machine.
	copied, err := Open(i.folder, 0o600, "knc06bgm7733st2576nx5jht4ecjx")
	require.NoError(t, err)
	_, err = copied.Certificate()
	assert.ErrorContains(t, err, `it is for instance "`+instanceID)
}

func TestConfigHashIsSeededFromTheNonce(t *testing.T) {
	i := newIdentity(t, pkitest.NewAuthority(t))
	key, err := i.Key()
	require.NoError(t, err)
	token, err := registration.NewNonceSigner(key).Agent(registration.AgentNonce{
		InstanceID: instanceID, ClusterID: "test", Tenant: "default", Shard: "a", ConfigHash: "sha256:01",
	})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(i.path(nonceFile), []byte(token+"\n"), 0o600))
	got, err := i.Nonce()
	require.NoError(t, err)
	assert.Equal(t, token, got)
	require.NoError(t, i.SeedConfigHash(got))
	hash, err := i.ConfigHash()
	require.NoError(t, err)
	assert.Equal(t, "sha256:01", hash)

	// The hash of an applied patch stays when the instance registers again.
	require.NoError(t, i.SetConfigHash("sha256:02"))
	require.NoError(t, i.SeedConfigHash(got))
	hash, err = i.ConfigHash()
	require.NoError(t, err)
	assert.Equal(t, "sha256:02", hash)

	for range 2 {
		require.NoError(t, i.RemoveNonce())
		got, err = i.Nonce()
		require.NoError(t, err)
		assert.Empty(t, got)
	}
}

// FuzzConfigHash reads arbitrary nonces. The error must not show them.
func FuzzConfigHash(f *testing.F) {
	part := base64.RawURLEncoding.EncodeToString
	f.Add(part([]byte(`{"alg":"EdDSA"}`)) + "." + part([]byte(`{"config_hash":"x"}`)) + ".")
	f.Add(part([]byte(`{"alg":"none"}`)) + "." + part([]byte(`{"config_hash":7}`)) + ".AA")
	f.Add("..")
	f.Add("a.b.c.d")
	f.Fuzz(func(t *testing.T, token string) {
		hash, err := configHash(token)
		if err != nil {
			assert.Empty(t, hash)
			if len(token) > 20 {
				assert.NotContains(t, err.Error(), token)
			}
		}
	})
}

func TestFilesAreBounded(t *testing.T) {
	i := open(t, t.TempDir())
	require.NoError(t, os.WriteFile(i.path(nonceFile), []byte(strings.Repeat("x", maxFileBytes+1)), 0o600))
	_, err := i.Nonce()
	assert.ErrorContains(t, err, "at most 1048576 are allowed")
}

// Userdata may have run with another umask.
func TestOpenSetsTheModeOfFiles(t *testing.T) {
	folder := t.TempDir()
	names := []string{caFile, nonceFile, keyFile, publicKeyFile, certificateFile, configHashFile}
	for _, name := range names {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte("x"), 0o644))
	}
	open(t, folder)
	for _, name := range names {
		info, err := os.Stat(filepath.Join(folder, name))
		require.NoError(t, err)
		assert.Equal(t, fs.FileMode(0o600), info.Mode(), name)
	}
}

func TestOpenRemovesTemporaryFiles(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, ".tmp-1"), nil, 0o600))
	open(t, folder)
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	assert.Empty(t, entries)
}

// With a certificate that no server accepts the agent could not request another certificate.
func TestTheCertificateOfAServerIsRefused(t *testing.T) {
	authority := pkitest.NewAuthority(t)
	i := newIdentity(t, authority)
	require.NoError(t, i.SetCertificate(sign(t, authority, i, instanceID, time.Hour)))
	before, err := os.ReadFile(i.path(certificateFile))
	require.NoError(t, err)
	leaf, err := authority.SignWorkload(pki.Workload{Server: true, CommonName: instanceID, TTL: time.Hour}, public(t, i), nil)
	require.NoError(t, err)
	assert.ErrorContains(t, i.SetCertificate(pki.EncodeCertificate(leaf)), "incompatible key usage")
	after, err := os.ReadFile(i.path(certificateFile))
	require.NoError(t, err)
	assert.Equal(t, string(before), string(after))
}
