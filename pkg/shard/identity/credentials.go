// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
)

// TransportCredentials returns gRPC client credentials that read the identity at
// each handshake: TLS 1.3, the client certificate and the CA that are current at
// that moment, and the host of the dialed endpoint as the name that the server's
// certificate must contain.
func (i *Identity) TransportCredentials() credentials.TransportCredentials {
	return &transportCredentials{TransportCredentials: credentials.NewTLS(nil), identity: i}
}

// transportCredentials replaces the client handshake of the embedded TLS
// credentials.
type transportCredentials struct {
	credentials.TransportCredentials
	identity *Identity
}

func (c *transportCredentials) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := c.identity.tlsConfig()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(config).ClientHandshake(ctx, authority, conn)
}

func (c *transportCredentials) Clone() credentials.TransportCredentials {
	return c.identity.TransportCredentials()
}
