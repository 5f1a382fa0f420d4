// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pki

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func newKey(t *testing.T) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	return public, private
}

// verify checks the chain of a client's certificate.
func verify(leaf *x509.Certificate, caPEM []byte) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(caPEM)
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err
}

func TestSignClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority := newAuthority(t)
		key, _ := newKey(t)
		want := Client{ID: "prod", Tenant: "a", Role: RoleOperator}
		leaf, err := authority.SignClient(want, key, time.Hour)
		require.NoError(t, err)
		if got, err := PeerClient(leaf); err != nil || got != want {
			t.Errorf("the client is %+v, %v, want %+v", got, err, want)
		}
		if !key.Equal(leaf.PublicKey) {
			t.Error("the certificate is for another key")
		}
		if want := time.Now().Add(time.Hour); !leaf.NotAfter.Equal(want) {
			t.Errorf("it expires at %s, want %s", leaf.NotAfter, want)
		}
		if err := verify(parse(t, EncodeCertificate(leaf)), authority.CertificatePEM()); err != nil {
			t.Error(err)
		}
		if _, err := authority.SignClient(Client{ID: "prod", Tenant: "a"}, key, time.Hour); err == nil {
			t.Error("a certificate was issued to a client without a role")
		}
	})
}

func TestLeafExpiresWithAuthority(t *testing.T) {
	authority := newAuthority(t)
	key, _ := newKey(t)
	leaf, err := authority.SignClient(Client{ID: "prod", Tenant: "a", Role: RoleAgent}, key, 2*authorityLifetime)
	require.NoError(t, err)
	if want := parse(t, authority.CertificatePEM()).NotAfter; !leaf.NotAfter.Equal(want) {
		t.Errorf("it expires at %s, the authority at %s", leaf.NotAfter, want)
	}
}

func TestLoadAuthority(t *testing.T) {
	_, key := newKey(t)
	stored, err := NewAuthorityForKey("prod", key)
	require.NoError(t, err)
	loaded, err := LoadAuthority(stored.CertificatePEM(), key)
	require.NoError(t, err)
	if !bytes.Equal(loaded.CertificatePEM(), stored.CertificatePEM()) || loaded.CommonName() != "prod" {
		t.Errorf("the certificate of %q differs", loaded.CommonName())
	}
	leafKey, _ := newKey(t)
	leaf, err := loaded.SignClient(Client{ID: "prod", Tenant: "a", Role: RoleOperator}, leafKey, time.Hour)
	require.NoError(t, err)
	if err := verify(leaf, stored.CertificatePEM()); err != nil {
		t.Errorf("a certificate that it issued is not trusted: %v", err)
	}

	_, otherKey := newKey(t)
	certPEM, _, err := stored.IssueServer(Names{Hosts: []string{"localhost"}}, time.Hour)
	require.NoError(t, err)
	for _, tc := range []struct {
		name string
		cert []byte
		key  ed25519.PrivateKey
		want string
	}{
		{"another key", stored.CertificatePEM(), otherKey, `authority "CN=prod" belongs to another key`},
		{"a leaf", certPEM, key, "is not that of an authority"},
		{"no PEM", []byte("certificate"), key, "no PEM block found"},
		{"a broken certificate", pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: []byte("x")}), key, "malformed certificate"},
	} {
		if _, err := LoadAuthority(tc.cert, tc.key); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.want)
		}
	}
}

func TestServingIsReissuedBeforeExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		serving := NewServing(newAuthority(t), Names{Hosts: []string{"127.0.0.1", "localhost"}})
		config := serving.Config()
		leaf := func() *x509.Certificate {
			t.Helper()
			certificate, err := config.GetCertificate(nil)
			require.NoError(t, err)
			return certificate.Leaf
		}
		first := leaf()
		for _, host := range []string{"127.0.0.1", "localhost"} {
			if err := first.VerifyHostname(host); err != nil {
				t.Error(err)
			}
		}
		if again := leaf(); again != first {
			t.Error("it was reissued although it is valid")
		}
		// No certificate that is about to expire is ever served.
		for range 100 {
			<-time.After(servingLifetime / 7)
			// Expires reissues it as a handshake does.
			expires, err := serving.Expires()
			require.NoError(t, err)
			served := leaf()
			if left := time.Until(served.NotAfter); left < servingLifetime/3-time.Second {
				t.Fatalf("a certificate with %s left was served", left)
			}
			if !expires.Equal(served.NotAfter) {
				t.Fatalf("Expires returned %s of a certificate that expires at %s", expires, served.NotAfter)
			}
		}
		nameless := NewServing(newAuthority(t), Names{})
		if _, err := nameless.Config().GetCertificate(nil); err == nil {
			t.Error("a certificate without hosts was issued")
		}
		if _, err := nameless.Expires(); err == nil {
			t.Error("a certificate that cannot be issued expires")
		}
	})
}
