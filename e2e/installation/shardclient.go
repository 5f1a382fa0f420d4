// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"nstance.dev/operator/pkg/server/pki"
)

// Dial connects to a shard's server with a certificate of the operator's role and
// tenant, to read or change groups without the operator.
func (n *Installation) Dial(shardID string) (*grpc.ClientConn, error) {
	return n.dial(shardID, loopback)
}

// DialStandby is Dial for the server that StartStandby runs.
func (n *Installation) DialStandby(shardID string) (*grpc.ClientConn, error) {
	return n.dial(shardID, standbyHost)
}

func (n *Installation) dial(shardID, host string) (*grpc.ClientConn, error) {
	shard, err := n.shard(shardID)
	if err != nil {
		return nil, fmt.Errorf("dial a shard: %w", err)
	}
	certPEM, keyPEM, err := n.authority.IssueClient(
		pki.Client{ID: ClusterID, Tenant: Tenant, Role: pki.RoleOperator}, certificateLifetime)
	if err != nil {
		return nil, fmt.Errorf("dial shard %s: %w", shardID, err)
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("dial shard %s: %w", shardID, err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(n.authority.CertificatePEM())
	transport := credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair},
		RootCAs:      roots,
		MinVersion:   tls.VersionTLS13,
	})
	connection, err := grpc.NewClient(net.JoinHostPort(host, strconv.Itoa(shard.OperatorPort)), grpc.WithTransportCredentials(transport))
	if err != nil {
		return nil, fmt.Errorf("dial shard %s: %w", shardID, err)
	}
	return connection, nil
}
