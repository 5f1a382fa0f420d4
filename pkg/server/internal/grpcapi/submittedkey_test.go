// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzSubmittedKey reads arbitrary public keys of a machine. An accepted key is Ed25519, and the
// same key in the other format is accepted too.
func FuzzSubmittedKey(f *testing.F) {
	der, err := x509.MarshalPKIXPublicKey(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public())
	require.NoError(f, err)
	f.Add(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	f.Add([]byte(base64.StdEncoding.EncodeToString(der) + "\n"))
	f.Add([]byte("-----BEGIN PRIVATE KEY-----\nAA==\n-----END PRIVATE KEY-----\n"))
	f.Add([]byte(""))
	f.Fuzz(func(t *testing.T, data []byte) {
		key, err := parseSubmitted(data)
		if err != nil {
			assert.Nil(t, key)
			return
		}
		require.Len(t, key, ed25519.PublicKeySize)
		der, err := x509.MarshalPKIXPublicKey(key)
		require.NoError(t, err)
		for _, other := range [][]byte{pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), []byte(base64.StdEncoding.EncodeToString(der))} {
			same, err := parseSubmitted(other)
			require.NoError(t, err)
			assert.Equal(t, key, same)
		}
	})
}
