// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"slices"
	"strings"

	"google.golang.org/grpc/credentials"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/operator/shard"
)

// Credentials returns a function that returns gRPC client credentials for the servers
// of a shard of the cluster. They read the identity at each handshake: TLS 1.3, the
// client certificate and the CA that are current at that moment. The server's
// certificate must contain the host of the dialed endpoint, and must not name another
// shard: the error is then a shard.WrongServerError. A certificate that names no shard
// is accepted, and the server verified by its groups (docs/protocol.md#authentication).
func (i *Identity) Credentials(cluster string) func(shard string) credentials.TransportCredentials {
	return func(shard string) credentials.TransportCredentials {
		return &transportCredentials{
			TransportCredentials: credentials.NewTLS(nil),
			identity:             i,
			server:               identifier.ServerURI(cluster, shard).String(),
		}
	}
}

// AnonymousCredentials returns gRPC client credentials for the servers of a shard of a
// cluster without a client certificate. Servers are verified as by Credentials.
func AnonymousCredentials(authorities *x509.CertPool, cluster, shard string) credentials.TransportCredentials {
	want := identifier.ServerURI(cluster, shard).String()
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13,
		RootCAs:    authorities,
		VerifyConnection: func(state tls.ConnectionState) error {
			return verifyServer(state.PeerCertificates[0], want)
		},
	})
}

// transportCredentials replaces the client handshake of the embedded TLS
// credentials.
type transportCredentials struct {
	credentials.TransportCredentials
	identity *Identity
	// server is the name that the server's certificate must have if it has one.
	server string
}

func (c *transportCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := c.identity.tlsConfig()
	if err != nil {
		return nil, nil, err
	}
	config.VerifyConnection = func(state tls.ConnectionState) error {
		return verifyServer(state.PeerCertificates[0], c.server)
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
}

func (c *transportCredentials) Clone() credentials.TransportCredentials {
	clone := *c
	return &clone
}

// verifyServer returns a shard.WrongServerError if the certificate names other servers
// than the wanted one.
func verifyServer(certificate *x509.Certificate, want string) error {
	names := identifier.ServerNames(certificate.URIs)
	if len(names) == 0 || slices.Contains(names, want) {
		return nil
	}
	return &shard.WrongServerError{Want: want, Got: strings.Join(names, ", ")}
}
