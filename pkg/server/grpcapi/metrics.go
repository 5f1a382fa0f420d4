// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"path"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// Count returns the interceptors that count calls by method and code in
// nstance_server_rpc_total, rejected ones too. A stream is counted when it is closed.
func Count(registry prometheus.Registerer) (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nstance_server_rpc_total",
		Help: "Calls answered, by method and gRPC status code.",
	}, []string{"method", "code"})
	registry.MustRegister(total)
	count := func(fullMethod string, err error) {
		total.WithLabelValues(path.Base(fullMethod), status.Code(err).String()).Inc()
	}

	unary := func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		response, err := handler(ctx, request)
		count(info.FullMethod, err)
		return response, err
	}
	stream := func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		err := handler(server, stream)
		count(info.FullMethod, err)
		return err
	}
	return unary, stream
}
