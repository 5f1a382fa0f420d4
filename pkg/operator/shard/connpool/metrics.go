// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package connpool

import (
	"context"
	"errors"
	"io"
	"path"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Metrics counts the calls to shards. No label comes from a reply, so that the number of
// series is bounded by the number of shards.
type Metrics struct {
	calls     *prometheus.CounterVec
	durations *prometheus.HistogramVec
}

// NewMetrics registers the metrics of calls to shards.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "nstance_operator_shard_calls_total",
			Help: "Calls to shards that have ended, by shard, method and gRPC status code. A watch is counted when it is closed.",
		}, []string{"shard", "method", "code"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "nstance_operator_shard_call_duration_seconds",
			Help:    "Duration of calls to shards, other than watches, by shard and method.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}, []string{"shard", "method"}),
	}
	registry.MustRegister(m.calls, m.durations)
	return m
}

// options returns the interceptors that count the calls of a connection, nil if m is nil.
func (m *Metrics) options(shard string) []grpc.DialOption {
	if m == nil {
		return nil
	}
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(
			ctx context.Context, method string, request, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
		) error {
			start := time.Now()
			err := invoke(ctx, method, request, reply, cc, options...)
			m.ended(shard, method, err)
			m.durations.WithLabelValues(shard, path.Base(method)).Observe(time.Since(start).Seconds())
			return err
		}),
		grpc.WithChainStreamInterceptor(func(
			ctx context.Context, description *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			stream, err := open(ctx, description, cc, method, options...)
			if err != nil {
				m.ended(shard, method, err)
				return nil, err
			}
			return &countedStream{ClientStream: stream, closed: func(err error) { m.ended(shard, method, err) }}, nil
		}),
	}
}

// forget drops the series of a shard that was removed. m may be nil.
func (m *Metrics) forget(shard string) {
	if m == nil {
		return
	}
	m.calls.DeletePartialMatch(prometheus.Labels{"shard": shard})
	m.durations.DeletePartialMatch(prometheus.Labels{"shard": shard})
}

// ended counts a call. An error that has no gRPC status counts with the code of its cause,
// such as Canceled.
func (m *Metrics) ended(shard, method string, err error) {
	code := status.Code(err)
	if code == codes.Unknown {
		code = status.FromContextError(err).Code()
	}
	m.calls.WithLabelValues(shard, path.Base(method), code.String()).Inc()
}

// countedStream counts a watch when it is closed.
type countedStream struct {
	grpc.ClientStream
	once   sync.Once
	closed func(error)
}

// RecvMsg implements grpc.ClientStream. The watch is closed after the first error.
func (s *countedStream) RecvMsg(message any) error {
	err := s.ClientStream.RecvMsg(message)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		s.once.Do(func() { s.closed(nil) })
	default:
		s.once.Do(func() { s.closed(err) })
	}
	return err
}
