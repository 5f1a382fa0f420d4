// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package servertest

import (
	"context"
	"crypto/tls"
	"net"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// clientID is not that of operators: when one registers, the server accepts no other
// certificates with its id.
const clientID = "servertest"

// Operator returns a client that calls as the operator of a tenant.
func (s *Server) Operator(tenant string) nstancev1.OperatorServiceClient {
	s.t.Helper()
	return s.Dial(pki.Client{ID: clientID, Tenant: tenant, Role: pki.RoleOperator})
}

// Dial returns a client that calls as c, over a connection of its own.
func (s *Server) Dial(c pki.Client) nstancev1.OperatorServiceClient {
	s.t.Helper()
	return nstancev1.NewOperatorServiceClient(s.connect(s.Addr, s.certificate(c)))
}

// Connect returns a connection for operators with a certificate.
func (s *Server) Connect(certificate tls.Certificate) *grpc.ClientConn {
	s.t.Helper()
	return s.connect(s.Addr, certificate)
}

// Registration returns a client without a certificate.
func (s *Server) Registration() nstancev1.RegistrationServiceClient {
	s.t.Helper()
	return nstancev1.NewRegistrationServiceClient(s.connect(s.RegistrationAddr))
}

// Credentials returns the credentials of a client.
func (s *Server) Credentials(c pki.Client) credentials.TransportCredentials {
	s.t.Helper()
	return s.credentials(s.certificate(c))
}

func (s *Server) credentials(certificates ...tls.Certificate) credentials.TransportCredentials {
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    pkitest.Roots(s.Authority),
		// Also in memory, where addresses have names.
		ServerName:   "localhost",
		Certificates: certificates,
	})
}

// DialAddress opens a connection to an address of the server, also in memory.
func (s *Server) DialAddress(ctx context.Context, address string) (net.Conn, error) {
	return s.network.dial(ctx, "tcp", address)
}

func (s *Server) certificate(c pki.Client) tls.Certificate {
	s.t.Helper()
	cert, key, err := s.Authority.IssueClient(c, certificateTTL)
	require.NoError(s.t, err)
	pair, err := tls.X509KeyPair(cert, key)
	require.NoError(s.t, err)
	return pair
}

func (s *Server) connect(address string, certificates ...tls.Certificate) *grpc.ClientConn {
	s.t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithContextDialer(s.DialAddress), grpc.WithTransportCredentials(s.credentials(certificates...)))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}
