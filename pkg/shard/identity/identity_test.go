// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/pki"
)

func newAuthority(t *testing.T) *pki.Authority {
	t.Helper()
	authority, err := pki.NewAuthority("test")
	require.NoError(t, err)
	return authority
}

func issueClient(t *testing.T, authority *pki.Authority, id string) (certPEM, keyPEM []byte) {
	t.Helper()
	certPEM, keyPEM, err := authority.IssueClient(pki.Client{ID: id, Tenant: "default", Role: pki.RoleOperator}, time.Hour)
	require.NoError(t, err)
	return certPEM, keyPEM
}

// listen serves TLS for hosts until the test is done, and returns the address and the
// common names of the clients that connected.
func listen(t *testing.T, authority *pki.Authority, version uint16, hosts ...string) (string, <-chan string) {
	t.Helper()
	certPEM, keyPEM, err := authority.IssueServer(hosts, time.Hour)
	require.NoError(t, err)
	certificate, err := tls.X509KeyPair(certPEM, keyPEM)
	require.NoError(t, err)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority.CertificatePEM())
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{certificate},
		ClientCAs:    trusted,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		MaxVersion:   version,
		NextProtos:   []string{"h2"},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	clients := make(chan string, 10)
	go func() {
		for {
			accepted, err := listener.Accept()
			if err != nil {
				return
			}
			conn := accepted.(*tls.Conn)
			if conn.HandshakeContext(t.Context()) == nil {
				clients <- conn.ConnectionState().PeerCertificates[0].Subject.CommonName
			}
			_ = conn.Close()
		}
	}()
	return listener.Addr().String(), clients
}

func handshake(t *testing.T, i *Identity, address string) error {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, _, err = i.TransportCredentials().Clone().ClientHandshake(ctx, address, conn)
	return err
}

func TestEachHandshakeUsesTheCurrentIdentity(t *testing.T) {
	authority := newAuthority(t)
	address, clients := listen(t, authority, tls.VersionTLS13, "127.0.0.1")
	var i Identity
	if err := handshake(t, &i, address); err == nil || !strings.Contains(err.Error(), "no client certificate") {
		t.Errorf("without an identity: got error %v", err)
	}
	for _, id := range []string{"first", "second"} {
		certPEM, keyPEM := issueClient(t, authority, id)
		require.NoError(t, i.Set(certPEM, keyPEM, authority.CertificatePEM()))
		require.NoError(t, handshake(t, &i, address))
		if got := <-clients; got != id {
			t.Errorf("the server saw client %q, want %q", got, id)
		}
	}
}

func TestNextHandshakeTrustsANewAuthority(t *testing.T) {
	before, after := newAuthority(t), newAuthority(t)
	address, _ := listen(t, after, tls.VersionTLS13, "127.0.0.1")
	var i Identity
	certPEM, keyPEM := issueClient(t, after, "prod")
	require.NoError(t, i.Set(certPEM, keyPEM, before.CertificatePEM()))
	if err := handshake(t, &i, address); err == nil {
		t.Error("a server of an authority that is not trusted was accepted")
	}
	// During a rotation both authorities are trusted.
	both := append(before.CertificatePEM(), after.CertificatePEM()...)
	require.NoError(t, i.Set(certPEM, keyPEM, both))
	if err := handshake(t, &i, address); err != nil {
		t.Error(err)
	}
}

func TestServerCertificateMustMatchTheEndpoint(t *testing.T) {
	authority := newAuthority(t)
	certPEM, keyPEM := issueClient(t, authority, "prod")
	var i Identity
	require.NoError(t, i.Set(certPEM, keyPEM, authority.CertificatePEM()))
	other, _ := listen(t, authority, tls.VersionTLS13, "127.0.0.2")
	if err := handshake(t, &i, other); err == nil {
		t.Error("a server with a certificate for another host was accepted")
	}
	old, _ := listen(t, authority, tls.VersionTLS12, "127.0.0.1")
	if err := handshake(t, &i, old); err == nil {
		t.Error("TLS 1.2 was accepted")
	}
}

func TestSetRejectsInvalidInputAndKeepsTheIdentity(t *testing.T) {
	authority := newAuthority(t)
	address, clients := listen(t, authority, tls.VersionTLS13, "127.0.0.1")
	certPEM, keyPEM := issueClient(t, authority, "good")
	otherCertPEM, _ := issueClient(t, authority, "bad")
	var i Identity
	require.NoError(t, i.Set(certPEM, keyPEM, authority.CertificatePEM()))
	for name, err := range map[string]error{
		"key of another certificate": i.Set(otherCertPEM, keyPEM, authority.CertificatePEM()),
		"no certificate":             i.Set(nil, keyPEM, authority.CertificatePEM()),
		"no CA":                      i.Set(certPEM, keyPEM, nil),
		"CA is not a certificate":    i.Set(certPEM, keyPEM, keyPEM),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		} else if strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("%s: the error contains the input: %v", name, err)
		}
	}
	require.NoError(t, handshake(t, &i, address))
	if got := <-clients; got != "good" {
		t.Errorf("the server saw client %q, want that of the valid identity", got)
	}
}
