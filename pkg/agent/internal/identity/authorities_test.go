// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"crypto/ed25519"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
)

// TestAuthoritiesAreStoredWithTheCertificate: an agent trusts what its server sends, and reports
// whether that was new.
func TestAuthoritiesAreStoredWithTheCertificate(t *testing.T) {
	old := pkitest.NewAuthority(t)
	next, err := pki.NewNextAuthority("test")
	require.NoError(t, err)
	id := newIdentity(t, old)
	issue := func(authority *pki.Authority) []byte {
		t.Helper()
		return sign(t, authority, id, instanceID, time.Hour)
	}
	set := func(certificatePEM, caPEM []byte) bool {
		t.Helper()
		require.NoError(t, id.SetIssued(keys.Issued{CertificatePEM: certificatePEM, AuthoritiesPEM: caPEM}))
		// The agent may have been started again.
		unconfirmed, err := open(t, id.folder).Unconfirmed()
		require.NoError(t, err)
		return unconfirmed
	}
	assert.False(t, set(issue(old), nil), "a server that does not send its authorities")
	assert.False(t, set(issue(old), old.CertificatePEM()), "the same authorities")
	both, switched := pki.Join(old, next), pki.Join(next, old)
	assert.True(t, set(issue(old), both.CertificatePEM()))
	trusted, err := id.Trusted()
	require.NoError(t, err)
	assert.Equal(t, both.Fingerprints(), trusted)
	assert.False(t, set(issue(old), both.CertificatePEM()))
	assert.True(t, set(issue(next), both.CertificatePEM()), "the certificate has another authority")
	assert.True(t, set(issue(next), switched.CertificatePEM()))

	// Authorities that have not issued the certificate would cut the agent off.
	for _, caPEM := range [][]byte{old.CertificatePEM(), []byte("no PEM")} {
		err = id.SetIssued(keys.Issued{CertificatePEM: issue(next), AuthoritiesPEM: caPEM})
		require.ErrorContains(t, err, "with the authorities that it sent")
		present, err := os.ReadFile(id.path(caFile))
		require.NoError(t, err)
		assert.Equal(t, switched.CertificatePEM(), present)
	}
	assert.True(t, set(issue(next), next.CertificatePEM()))
	key, err := id.Key()
	require.NoError(t, err)
	certificate, err := id.Certificate()
	require.NoError(t, err)
	assert.True(t, key.Public().(ed25519.PublicKey).Equal(certificate.Leaf.PublicKey))
}
