// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"path"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// Count returns the interceptors that count calls by method and code in
// nstance_server_rpc_total, rejected ones too. A stream is counted when it is closed; until
// then it is in nstance_server_streams. Other calls have a duration.
func Count(registry prometheus.Registerer) (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "nstance_server_rpc_total",
		Help: "Calls answered, by method and gRPC status code.",
	}, []string{"method", "code"})
	durations := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "nstance_server_rpc_duration_seconds",
		Help:    "Duration of calls other than streams, by method.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
	}, []string{"method"})
	streams := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "nstance_server_streams",
		Help: "Streams that are open, by method.",
	}, []string{"method"})
	registry.MustRegister(total, durations, streams)
	count := func(fullMethod string, err error) {
		total.WithLabelValues(path.Base(fullMethod), status.Code(err).String()).Inc()
	}

	unary := func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		start := time.Now()
		response, err := handler(ctx, request)
		durations.WithLabelValues(path.Base(info.FullMethod)).Observe(time.Since(start).Seconds())
		count(info.FullMethod, err)
		return response, err
	}
	stream := func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		open := streams.WithLabelValues(path.Base(info.FullMethod))
		open.Inc()
		defer open.Dec()
		err := handler(server, stream)
		count(info.FullMethod, err)
		return err
	}
	return unary, stream
}
