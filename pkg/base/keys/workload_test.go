// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package keys

import (
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzWorkload reads arbitrary public keys of a machine. The same key in the
// other format as an accepted key is accepted too.
func FuzzWorkload(f *testing.F) {
	der, err := x509.MarshalPKIXPublicKey(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public())
	require.NoError(f, err)
	f.Add(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	f.Add([]byte(base64.StdEncoding.EncodeToString(der) + "\n"))
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, data []byte) {
		key, err := ParseWorkload(data)
		if err != nil {
			assert.Nil(t, key)
			return
		}
		der, err := x509.MarshalPKIXPublicKey(key)
		require.NoError(t, err)
		for _, other := range [][]byte{pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), []byte(base64.StdEncoding.EncodeToString(der))} {
			same, err := ParseWorkload(other)
			require.NoError(t, err)
			assert.Equal(t, key, same)
		}
	})
}

// TestWorkloadKeys: keys that TLS of Go and Kubernetes accepts are signed, and no others.
func TestWorkloadKeys(t *testing.T) {
	small, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // it must be refused
	require.NoError(t, err)
	large, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	agreement, err := ecdh.X25519().GenerateKey(rand.Reader)
	require.NoError(t, err)
	curve := func(c elliptic.Curve) any {
		key, err := ecdsa.GenerateKey(c, rand.Reader)
		require.NoError(t, err)
		return key.Public()
	}
	for name, test := range map[string]struct {
		key any
		err string
	}{
		"Ed25519":  {ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public(), ""},
		"P-256":    {curve(elliptic.P256()), ""},
		"P-521":    {curve(elliptic.P521()), ""},
		"RSA 2048": {large.Public(), ""},
		"P-224":    {curve(elliptic.P224()), "the ECDSA key has the curve P-224, needs to be P-256, P-384 or P-521"},
		"RSA 1024": {small.Public(), "the RSA key has 1024 bits, needs to have 2048 to 8192"},
		"X25519":   {agreement.PublicKey(), "needs to be Ed25519, ECDSA or RSA"},
	} {
		der, err := x509.MarshalPKIXPublicKey(test.key)
		require.NoError(t, err)
		parsed, err := ParseWorkload(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
		if test.err == "" {
			require.NoError(t, err, name)
			assert.Equal(t, test.key, parsed, name)
		} else {
			require.ErrorContains(t, err, test.err, name)
		}
	}
}
