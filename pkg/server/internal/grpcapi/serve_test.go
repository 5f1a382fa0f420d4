// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"errors"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// dial serves over a connection in memory and returns the client of a tenant.
// An interceptor sets the client: there is no TLS here.
func dial(t testing.TB, server nstancev1.OperatorServiceServer, options ...grpc.ServerOption) nstancev1.OperatorServiceClient {
	t.Helper()
	const window = 1 << 20
	listener := bufconn.Listen(window)
	options = append(options,
		grpc.ChainUnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			return handler(as(ctx, "default"), request)
		}),
		grpc.ChainStreamInterceptor(func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			return handler(server, &serverStream{ServerStream: stream, ctx: as(stream.Context(), "default")})
		}))
	grpcServer := grpc.NewServer(options...)
	nstancev1.RegisterOperatorServiceServer(grpcServer, server)
	served := make(chan error, 1)
	go func() { served <- grpcServer.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///server", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	require.NoError(t, err)
	t.Cleanup(func() {
		closeErr := conn.Close()
		grpcServer.Stop()
		assert.NoError(t, errors.Join(closeErr, <-served))
	})
	return nstancev1.NewOperatorServiceClient(conn)
}
