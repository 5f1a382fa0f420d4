// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pki

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/authorities"
)

// connect makes a TLS connection to a server, and returns the authority of its certificate and the
// error with which the server refuses the client.
func connect(t *testing.T, server *tls.Config, trusted *Authority, client *Authority) (issuer *x509.Certificate, refused error) {
	t.Helper()
	certPEM, keyPEM, err := client.IssueClient(Client{ID: "prod", Tenant: "default", Role: RoleOperator}, time.Hour)
	require.NoError(t, err)
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	served := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			err = tls.Server(conn, server).HandshakeContext(t.Context())
			_ = conn.Close()
		}
		served <- err
	}()
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(trusted.CertificatePEM()))
	conn, err := (&tls.Dialer{Config: &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: roots,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil },
	}}).DialContext(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	chain := conn.(*tls.Conn).ConnectionState().VerifiedChains[0]
	return chain[len(chain)-1], <-served
}

// TestServersFollowTheAuthorityWithoutARestart: each handshake accepts and presents what the
// authority has at this moment.
func TestServersFollowTheAuthorityWithoutARestart(t *testing.T) {
	old, err := NewAuthority("prod")
	require.NoError(t, err)
	next, err := NewNextAuthority("prod")
	require.NoError(t, err)
	current := Join(old)
	server := NewServing(current, Names{Hosts: []string{"127.0.0.1"}}).MutualConfig()
	both := Join(old, next)
	issuer := func(a *Authority) string { return a.Fingerprints()[0] }

	shown, refused := connect(t, server, both, old)
	require.NoError(t, refused)
	assert.Equal(t, issuer(old), authorities.Fingerprint(shown))
	_, refused = connect(t, server, both, next)
	require.Error(t, refused, "an authority that is not accepted")

	require.True(t, current.Set(both))
	require.False(t, current.Set(both), "nothing has changed")
	for _, client := range []*Authority{old, next} {
		shown, refused = connect(t, server, both, client)
		require.NoError(t, refused)
		assert.Equal(t, issuer(old), authorities.Fingerprint(shown))
	}

	require.True(t, current.Set(Join(next, old)))
	shown, refused = connect(t, server, both, old)
	require.NoError(t, refused)
	assert.Equal(t, issuer(next), authorities.Fingerprint(shown))

	require.True(t, current.Set(next))
	_, refused = connect(t, server, both, old)
	require.Error(t, refused, "the old authority is not accepted any more")
	_, refused = connect(t, server, both, next)
	require.NoError(t, refused)
}

// A server that has not loaded the next authority yet records that a client trusts it: the client does
// not say so again before its next renewal.
func TestTrust(t *testing.T) {
	old, err := NewAuthority("prod")
	require.NoError(t, err)
	next, err := NewNextAuthority("prod")
	require.NoError(t, err)
	both := Join(next, old)
	certPEM, _, err := old.IssueClient(Client{ID: "prod", Tenant: "default", Role: RoleOperator}, time.Hour)
	require.NoError(t, err)
	certificate, err := ParseCertificate(certPEM)
	require.NoError(t, err)
	assert.Nil(t, both.Trust(certificate, nil), "a client that does not say what it trusts")
	assert.Equal(t, &Trust{Issuer: old.Fingerprints()[0], Authorities: both.Fingerprints()}, old.Trust(certificate, both.Fingerprints()))
	assert.Equal(t, &Trust{Issuer: old.Fingerprints()[0], Authorities: old.Fingerprints()},
		both.Trust(certificate, []string{"unknown", old.Fingerprints()[0], old.Fingerprints()[0], strings.Repeat("x", 64)}))
	var many []string
	for n := range 100 {
		many = append(many, fmt.Sprintf("%064x", n))
	}
	assert.Equal(t, many[:8], both.Trust(certificate, many).Authorities, "a client that trusts many")
	assert.True(t, both.Accepts(mustParse(t, old)) && both.Accepts(mustParse(t, next)) && !old.Accepts(mustParse(t, next)))
	assert.Len(t, both.KeySeeds(), 2)
}

func mustParse(t *testing.T, a *Authority) *x509.Certificate {
	t.Helper()
	certificate, err := ParseCertificate(a.CertificatePEM())
	require.NoError(t, err)
	return certificate
}
