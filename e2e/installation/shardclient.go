// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"fmt"
	"net"
	"strconv"

	"google.golang.org/grpc"

	"nstance.dev/operator/pkg/operator/shard/identity"
	"nstance.dev/operator/pkg/server/pki"
)

// Dial connects to a shard's server with a certificate of the operator's role and
// tenant, to read or change groups without the operator.
func (n *Installation) Dial(shardID string) (*grpc.ClientConn, error) {
	return n.dial(shardID, loopback)
}

// clientID is not that of the operator: the servers accept only the certificate that the
// operator registered with its id.
const clientID = "e2e"

// DialStandby is Dial for the server that StartStandby runs.
func (n *Installation) DialStandby(shardID string) (*grpc.ClientConn, error) {
	return n.dial(shardID, standbyHost)
}

func (n *Installation) dial(shardID, host string) (*grpc.ClientConn, error) {
	shard, err := n.shard(shardID)
	if err != nil {
		return nil, fmt.Errorf("dial a shard: %w", err)
	}
	return Dial(n.authority, shardID, net.JoinHostPort(host, strconv.Itoa(shard.OperatorPort)))
}

// Dial connects to a server of a shard at its address for operators, with a certificate of
// the operator's role and tenant that authority issues.
func Dial(authority *pki.Authority, shardID, address string) (*grpc.ClientConn, error) {
	certPEM, keyPEM, err := authority.IssueClient(
		pki.Client{ID: clientID, Tenant: Tenant, Role: pki.RoleOperator}, certificateLifetime)
	if err != nil {
		return nil, fmt.Errorf("dial shard %s: %w", shardID, err)
	}
	id := &identity.Identity{}
	if err := id.Set(certPEM, keyPEM, authority.CertificatePEM()); err != nil {
		return nil, fmt.Errorf("dial shard %s: %w", shardID, err)
	}
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(id.Credentials(ClusterID)(shardID)))
	if err != nil {
		return nil, fmt.Errorf("dial shard %s: %w", shardID, err)
	}
	return connection, nil
}
