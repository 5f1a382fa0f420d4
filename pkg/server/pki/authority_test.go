// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pki

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
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
			// Expires reissues the certificate as a handshake does.
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

func newAuthority(t *testing.T) *Authority {
	t.Helper()
	authority, err := NewAuthority("test")
	require.NoError(t, err)
	return authority
}

func parse(t *testing.T, certPEM []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(certPEM)
	if block == nil {
		t.Fatal("no PEM block")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	return certificate
}

func TestIssueClientRoundTrip(t *testing.T) {
	authority := newAuthority(t)
	want := Client{ID: "prod", Tenant: "default", Role: RoleOperator}
	certPEM, _, err := authority.IssueClient(want, time.Hour)
	require.NoError(t, err)
	certificate := parse(t, certPEM)
	got, err := PeerClient(certificate)
	require.NoError(t, err)
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if _, ok := certificate.PublicKey.(ed25519.PublicKey); !ok {
		t.Errorf("public key is %T, want Ed25519", certificate.PublicKey)
	}
	// 0c is the tag of UTF8String, which other readers of the extension require.
	if got, want := string(certificate.Extensions[len(certificate.Extensions)-1].Value), "\x0c\x08operator"; got != want {
		t.Errorf("role extension is %q, want %q", got, want)
	}
}

func TestIssueRejectsIncompleteRequests(t *testing.T) {
	authority := newAuthority(t)
	for _, c := range []Client{
		{Tenant: "default", Role: RoleAgent},
		{ID: "prod", Role: RoleAgent},
		{ID: "prod", Tenant: "default"},
	} {
		if _, _, err := authority.IssueClient(c, time.Hour); err == nil {
			t.Errorf("IssueClient(%+v) succeeded", c)
		}
	}
	if _, _, err := authority.IssueServer(Names{}, time.Hour); err == nil {
		t.Error("IssueServer without hosts succeeded")
	}
}

func TestPeerClient(t *testing.T) {
	role := func(value string) []pkix.Extension {
		return []pkix.Extension{{Id: oidRole, Value: []byte(value)}}
	}
	tests := []struct {
		name        string
		certificate x509.Certificate
		want        Client
		wantErr     string
	}{{
		name: "role as UTF8String",
		certificate: x509.Certificate{
			Subject:    pkix.Name{CommonName: "prod", Organization: []string{"a"}},
			Extensions: role("\x0c\x05agent"),
		},
		want: Client{ID: "prod", Tenant: "a", Role: RoleAgent},
	}, {
		name: "role as PrintableString",
		certificate: x509.Certificate{
			Subject:    pkix.Name{CommonName: "prod", Organization: []string{"a"}},
			Extensions: role("\x13\x05agent"),
		},
		want: Client{ID: "prod", Tenant: "a", Role: RoleAgent},
	}, {
		name: "role as raw bytes",
		certificate: x509.Certificate{
			Subject:    pkix.Name{CommonName: "prod", Organization: []string{"a"}},
			Extensions: role("operator"),
		},
		want: Client{ID: "prod", Tenant: "a", Role: RoleOperator},
	}, {
		name: "role followed by more bytes is not the role",
		certificate: x509.Certificate{
			Subject:    pkix.Name{CommonName: "prod", Organization: []string{"a"}},
			Extensions: role("\x0c\x05agentX"),
		},
		want: Client{ID: "prod", Tenant: "a", Role: "\x0c\x05agentX"},
	}, {
		name: "empty role",
		certificate: x509.Certificate{
			Subject:    pkix.Name{CommonName: "prod", Organization: []string{"a"}},
			Extensions: role("\x0c\x00"),
		},
		wantErr: "is not text",
	}, {
		name: "no role",
		certificate: x509.Certificate{
			Subject: pkix.Name{CommonName: "prod", Organization: []string{"a"}},
		},
		wantErr: "1.3.6.1.4.1.999999.1 is missing",
	}, {
		name: "no common name",
		certificate: x509.Certificate{
			Subject:    pkix.Name{Organization: []string{"a"}},
			Extensions: role("agent"),
		},
		wantErr: "common name: must not be empty",
	}, {
		name: "no organization",
		certificate: x509.Certificate{
			Subject:    pkix.Name{CommonName: "prod"},
			Extensions: role("agent"),
		},
		wantErr: "has 0 organizations",
	}, {
		name: "two organizations",
		certificate: x509.Certificate{
			Subject:    pkix.Name{CommonName: "prod", Organization: []string{"a", "b"}},
			Extensions: role("agent"),
		},
		wantErr: "has 2 organizations",
	}, {
		name: "empty organization",
		certificate: x509.Certificate{
			Subject:    pkix.Name{CommonName: "prod", Organization: []string{""}},
			Extensions: role("agent"),
		},
		wantErr: "is empty",
	}}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got, err := PeerClient(&tc.certificate)
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("got error %v, want one with %q", err, tc.wantErr)
				}
				return
			}
			require.NoError(t, err)
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestMutualHandshake(t *testing.T) {
	authority, foreign := newAuthority(t), newAuthority(t)
	server := NewServing(authority, Names{Hosts: []string{"127.0.0.1", "::1", "localhost"}}).MutualConfig()
	operator := Client{ID: "prod", Tenant: "default", Role: RoleOperator}
	tests := []struct {
		name       string
		issuer     *Authority
		ttl        time.Duration
		host       string
		maxVersion uint16
		wantErr    string
	}{
		{name: "by address", issuer: authority, ttl: time.Hour, host: "127.0.0.1"},
		{name: "by IPv6 address", issuer: authority, ttl: time.Hour, host: "::1"},
		{name: "by name", issuer: authority, ttl: time.Hour, host: "localhost"},
		{name: "client of another authority", issuer: foreign, ttl: time.Hour, host: "localhost", wantErr: "unknown authority"},
		{name: "expired client", issuer: authority, ttl: -time.Minute, host: "localhost", wantErr: "expired"},
		{name: "no client certificate", host: "localhost", wantErr: "client didn't provide a certificate"},
		{name: "TLS 1.2", issuer: authority, ttl: time.Hour, host: "localhost", maxVersion: tls.VersionTLS12, wantErr: "unsupported versions"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(authority.CertificatePEM())
			client := &tls.Config{RootCAs: roots, ServerName: tc.host, MaxVersion: tc.maxVersion}
			if tc.issuer != nil {
				certPEM, keyPEM, err := tc.issuer.IssueClient(operator, tc.ttl)
				require.NoError(t, err)
				pair, err := tls.X509KeyPair(certPEM, keyPEM)
				require.NoError(t, err)
				// The certificate is sent even if the server names other authorities, as a
				// malicious client would.
				client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
			}
			near, far := net.Pipe()
			defer near.Close()
			go func() {
				conn := tls.Client(near, client)
				_ = conn.Handshake()
				// The server's result arrives after the client's handshake.
				_, _ = conn.Read(make([]byte, 1))
			}()
			conn := tls.Server(far, server)
			defer far.Close()
			err := conn.HandshakeContext(t.Context())
			if tc.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
					t.Fatalf("got error %v, want one with %q", err, tc.wantErr)
				}
				return
			}
			require.NoError(t, err)
			got, err := PeerClient(conn.ConnectionState().VerifiedChains[0][0])
			if err != nil || got != operator {
				t.Errorf("got %+v, %v, want %+v", got, err, operator)
			}
		})
	}
}
