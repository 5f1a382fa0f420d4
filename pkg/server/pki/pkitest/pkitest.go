// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package pkitest has certificates, and servers that use them, for tests.
package pkitest

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/pki"
)

// NewAuthority returns the authority of a cluster "test".
func NewAuthority(t testing.TB) *pki.Authority {
	t.Helper()
	authority, err := pki.NewAuthority("test")
	require.NoError(t, err)
	return authority
}

// Operator returns the certificate of an operator, and its key.
func Operator(t testing.TB, authority *pki.Authority, id, tenant string) (certPEM, keyPEM []byte) {
	t.Helper()
	certPEM, keyPEM, err := authority.IssueClient(pki.Client{ID: id, Tenant: tenant, Role: pki.RoleOperator}, time.Hour)
	require.NoError(t, err)
	return certPEM, keyPEM
}

// Roots returns a pool with the authority's certificate.
func Roots(authority *pki.Authority) *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.CertificatePEM())
	return roots
}

// WorkloadConfig returns the TLS configuration of a server that has the certificate of a workload
// for a host, as a machine gets it as a file.
func WorkloadConfig(t testing.TB, authority *pki.Authority, host string) *tls.Config {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	w := pki.Workload{Server: true, CommonName: host, IP: []netip.Addr{netip.MustParseAddr(host)}, TTL: time.Hour}
	certificate, err := authority.SignWorkload(w, public, nil)
	require.NoError(t, err)
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		ClientAuth:   tls.RequireAnyClientCert,
		Certificates: []tls.Certificate{{Certificate: [][]byte{certificate.Raw}, PrivateKey: private}},
	}
}

// Listen serves TLS until the end of the test, and returns the address and the common
// names of the clients that connected.
func Listen(t testing.TB, config *tls.Config) (address string, clients <-chan string) {
	t.Helper()
	config.NextProtos = []string{"h2"}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	connected := make(chan string, 10)
	go func() {
		for {
			accepted, err := listener.Accept()
			if err != nil {
				return
			}
			conn := accepted.(*tls.Conn)
			if conn.HandshakeContext(t.Context()) == nil {
				connected <- conn.ConnectionState().PeerCertificates[0].Subject.CommonName
			}
			_ = conn.Close()
		}
	}()
	return listener.Addr().String(), connected
}
