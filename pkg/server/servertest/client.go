// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package servertest

import (
	"crypto/tls"
	"crypto/x509"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"nstance.dev/operator/pkg/server/pki"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Operator returns a client that calls as the operator of a tenant.
func (s *Server) Operator(tenant string) nstancev1.OperatorServiceClient {
	s.t.Helper()
	return s.Dial(pki.Client{ID: ClusterID, Tenant: tenant, Role: pki.RoleOperator})
}

// Dial returns a client that calls as c, over a connection of its own.
func (s *Server) Dial(c pki.Client) nstancev1.OperatorServiceClient {
	s.t.Helper()
	cert, key, err := s.Authority.IssueClient(c, certificateTTL)
	if err != nil {
		s.t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		s.t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.Authority.CertificatePEM())
	conn, err := grpc.NewClient(s.Addr, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		MinVersion:   tls.VersionTLS13,
		RootCAs:      roots,
		Certificates: []tls.Certificate{pair},
	})))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	return nstancev1.NewOperatorServiceClient(conn)
}
