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

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/internal/conninfo"
)

// handshakes are the credentials of one connection. They keep the result of the last
// handshake, because gRPC passes its error to callers as text.
type handshakes struct {
	credentials.TransportCredentials
	// address is the address of the connection.
	address     string
	wrongServer atomic.Pointer[shard.WrongServerError]
	// current is the server of the last handshake, nil if that failed.
	current atomic.Pointer[conninfo.Info]
}

func (h *handshakes) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := h.TransportCredentials.ClientHandshake(ctx, authority, conn)
	wrongServer, _ := errors.AsType[*shard.WrongServerError](err)
	h.wrongServer.Store(wrongServer)
	var current *conninfo.Info
	if tls, ok := info.(credentials.TLSInfo); ok && err == nil {
		current = conninfo.New(tls, h.address)
		info = current
	}
	h.current.Store(current)
	return secured, info, err
}

// Clone returns h itself: a connection has one client.
func (h *handshakes) Clone() credentials.TransportCredentials { return h }

// explain replaces the error of a call that was not made, because the last handshake was
// with a wrong server, or with one that was rejected later.
func (h *handshakes) explain(
	ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	err := invoke(ctx, method, request, reply, cc, options...)
	if !shard.IsUnreachable(err) {
		return err
	}
	if wrongServer := h.wrongServer.Load(); wrongServer != nil {
		return wrongServer
	}
	if rejected := h.current.Load().Rejected(); rejected != nil {
		return rejected
	}
	return err
}
