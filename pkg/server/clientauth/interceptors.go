// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package clientauth

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
)

// Unary is the interceptor that serves only calls that are admitted. It must follow
// that of grpcapi.Authorize, which rejects certificates without a client.
func (g *Guard) Unary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if _, _, err := g.admit(ctx); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

// Stream is like Unary. It closes a stream that is not admitted any more, with the
// status as of a new call.
func (g *Guard) Stream(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	c, cluster, err := g.admit(stream.Context())
	if err != nil {
		return err
	}
	ctx, remove, err := c.open(stream.Context(), cluster)
	if err != nil {
		return err
	}
	defer remove()
	err = handler(server, &serverStream{ServerStream: stream, ctx: ctx})
	if closed, ok := status.FromError(context.Cause(ctx)); ok && closed.Code() != codes.OK {
		return closed.Err()
	}
	return err
}

// serverStream is a stream with another context.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *serverStream) Context() context.Context { return s.ctx }

// admit returns the connection of a call and the Kubernetes cluster that it names, or a
// gRPC status if it is not admitted.
func (g *Guard) admit(ctx context.Context) (c *connection, cluster string, err error) {
	if p, ok := peer.FromContext(ctx); ok {
		c, _ = p.AuthInfo.(*connection)
	}
	if c == nil {
		return nil, "", status.Error(codes.Unauthenticated, "the connection has no client")
	}
	cluster, err = namedCluster(ctx)
	if err == nil {
		err = g.checkCertificate(ctx, c)
	}
	if err == nil {
		err = g.checkCluster(ctx, c, cluster)
	}
	if err != nil {
		klog.FromContext(ctx).Info("Rejected a call", "reason", status.Convert(err).Message())
		return nil, "", err
	}
	return c, cluster, nil
}
