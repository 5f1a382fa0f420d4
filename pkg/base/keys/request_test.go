// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package keys

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func newRequest(t *testing.T) Request {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	request, err := NewRequest(private)
	require.NoError(t, err)
	return request
}

// A client that sends the public key of another one gets no certificate for it.
func TestARequestProvesPossessionOfTheKey(t *testing.T) {
	own, other := newRequest(t), newRequest(t)
	require.NoError(t, own.Check())
	assert.NoError(t, Request{PublicKeyPEM: own.PublicKeyPEM}.Check(), "of an older client")
	assert.ErrorContains(t, Request{PublicKeyPEM: other.PublicKeyPEM, CertificateRequest: own.CertificateRequest}.Check(), "it is for another key than public_key_pem")
	assert.ErrorContains(t, Request{PublicKeyPEM: own.PublicKeyPEM, CertificateRequest: []byte("x")}.Check(), "certificate_request: must be PKCS #10, DER")
	assert.ErrorContains(t, Request{PublicKeyPEM: []byte("x"), CertificateRequest: own.CertificateRequest}.Check(), "public_key_pem")
	forged := bytes.Clone(own.CertificateRequest)
	forged[len(forged)-1] ^= 1 // of the signature
	assert.ErrorContains(t, Request{PublicKeyPEM: own.PublicKeyPEM, CertificateRequest: forged}.Check(), "certificate_request: ")
}
