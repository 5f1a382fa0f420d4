// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package keys

import (
	"bytes"
	"crypto/ed25519"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzRequest checks arbitrary certificate requests. What is accepted for a public key is signed with
// its private key, so it is not accepted for another one.
func FuzzRequest(f *testing.F) {
	own, other := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, ed25519.SeedSize))
	request, err := NewRequest(own)
	require.NoError(f, err)
	otherRequest, err := NewRequest(other)
	require.NoError(f, err)
	f.Add(request.CertificateRequest, uint(0), byte(0))
	f.Add(request.CertificateRequest, uint(len(request.CertificateRequest)-1), byte(1))
	f.Add(otherRequest.CertificateRequest, uint(4), byte(0x80))
	f.Add([]byte(nil), uint(0), byte(0))
	f.Add([]byte("0"), uint(0), byte(1))
	f.Fuzz(func(t *testing.T, der []byte, at uint, change byte) {
		der = bytes.Clone(der)
		if len(der) > 0 {
			der[at%uint(len(der))] ^= change
		}
		err := Request{PublicKeyPEM: request.PublicKeyPEM, CertificateRequest: der}.Check()
		otherErr := Request{PublicKeyPEM: otherRequest.PublicKeyPEM, CertificateRequest: der}.Check()
		if len(der) == 0 {
			assert.NoError(t, err)
			return
		}
		assert.False(t, err == nil && otherErr == nil, "it is accepted for two keys")
		assert.Error(t, Request{PublicKeyPEM: nil, CertificateRequest: der}.Check())
	})
}
