// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"nstance.dev/operator/pkg/shard"
)

// handshakes are the credentials of one connection. They keep the result of the last
// handshake, because gRPC passes its error to callers as text.
type handshakes struct {
	credentials.TransportCredentials
	wrongServer atomic.Pointer[shard.WrongServerError]
}

func (h *handshakes) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := h.TransportCredentials.ClientHandshake(ctx, authority, conn)
	wrongServer, _ := errors.AsType[*shard.WrongServerError](err)
	h.wrongServer.Store(wrongServer)
	return secured, info, err
}

// Clone returns h itself: a connection has one client.
func (h *handshakes) Clone() credentials.TransportCredentials { return h }

// explain replaces the error of a call that had no connection, because the last
// handshake was with a wrong server.
func (h *handshakes) explain(
	ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	err := invoke(ctx, method, request, reply, cc, options...)
	if wrongServer := h.wrongServer.Load(); wrongServer != nil && shard.IsUnreachable(err) {
		return wrongServer
	}
	return err
}
