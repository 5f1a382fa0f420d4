// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package keys

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKeysRoundTrip(t *testing.T) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	privatePEM, err := EncodePrivate(private)
	require.NoError(t, err)
	if got, err := ParsePrivate(privatePEM); err != nil || !got.Equal(private) {
		t.Errorf("the private key differs: %v", err)
	}
	publicPEM, err := EncodePublic(public)
	require.NoError(t, err)
	if got, err := ParsePublic(publicPEM); err != nil || !got.Equal(public) {
		t.Errorf("the public key differs: %v", err)
	}
}

func TestKeysAreEd25519(t *testing.T) {
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	privateDER, err := x509.MarshalPKCS8PrivateKey(other)
	require.NoError(t, err)
	publicDER, err := x509.MarshalPKIXPublicKey(other.Public())
	require.NoError(t, err)
	block := func(blockType string, data []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: blockType, Bytes: data})
	}
	private := func(data []byte) error { _, err := ParsePrivate(data); return err }
	public := func(data []byte) error { _, err := ParsePublic(data); return err }
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"no private key", private(nil), "no PEM block found"},
		{"a public key for a private one", private(block(publicKeyBlock, publicDER)), `of type "PUBLIC KEY", needs to be "PRIVATE KEY"`},
		{"a broken private key", private(block(privateKeyBlock, []byte("secret"))), "is not PKCS #8"},
		{"a private key of another kind", private(block(privateKeyBlock, privateDER)), "needs to be Ed25519"},
		{"no public key", public([]byte("key")), "no PEM block found"},
		{"a private key for a public one", public(block(privateKeyBlock, privateDER)), `of type "PRIVATE KEY", needs to be "PUBLIC KEY"`},
		{"a broken public key", public(block(publicKeyBlock, []byte("key"))), "parse the public key"},
		{"a public key of another kind", public(block(publicKeyBlock, publicDER)), "needs to be Ed25519"},
	} {
		if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.name, tc.err, tc.want)
		}
	}
}
