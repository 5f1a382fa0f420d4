// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pki

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
				// Sent even when the server names other authorities, as a malicious
				// client would.
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
