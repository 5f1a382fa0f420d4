// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/internal/clientrate"
	"nstance.dev/operator/pkg/server/pki"
)

// clientKey is the context key of the client.
type clientKey struct{}

// clientFrom returns the client of a call. Authorize sets it for every call.
func clientFrom(ctx context.Context) pki.Client {
	client, _ := ctx.Value(clientKey{}).(pki.Client)
	return client
}

// certificateKey is the context key of the client's certificate.
type certificateKey struct{}

// certificateFrom returns the certificate of the client of a call.
func certificateFrom(ctx context.Context) *x509.Certificate {
	certificate, _ := ctx.Value(certificateKey{}).(*x509.Certificate)
	return certificate
}

// Authorize returns the interceptors that accept only clients with a role, and put the client
// into the context of the handlers. They reject a certificate without a valid client with
// Unauthenticated, and another role with PermissionDenied (docs/protocol.md#authentication).
// Handlers log with logger.
func Authorize(logger klog.Logger, role string) (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	unary := func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		ctx, err := authorize(ctx, logger, role)
		if err != nil {
			return nil, err
		}
		return handler(ctx, request)
	}
	stream := func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, err := authorize(stream.Context(), logger, role)
		if err != nil {
			return err
		}
		return handler(server, &serverStream{ServerStream: stream, ctx: ctx})
	}
	return unary, stream
}

// serverStream is a stream whose context has the client.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *serverStream) Context() context.Context {
	return s.ctx
}

func authorize(ctx context.Context, logger klog.Logger, role string) (context.Context, error) {
	client, certificate, err := peerClient(ctx)
	if err != nil {
		logger.Info("Rejected a client", "reason", err.Error())
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	if client.Role != role {
		logger.Info("Rejected a client with another role", "client", client.ID, "tenant", client.Tenant, "role", client.Role)
		return nil, status.Errorf(codes.PermissionDenied, "client %q has role %q, this service is for role %q", client.ID, client.Role, role)
	}
	ctx = klog.NewContext(ctx, klog.LoggerWithValues(logger, "client", client.ID, "tenant", client.Tenant))
	ctx = context.WithValue(ctx, certificateKey{}, certificate)
	return context.WithValue(ctx, clientKey{}, client), nil
}

// peerClient reads the client from the certificate that the TLS handshake verified.
func peerClient(ctx context.Context) (pki.Client, *x509.Certificate, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return pki.Client{}, nil, errors.New("the connection has no peer")
	}
	var info credentials.TLSInfo
	switch auth := p.AuthInfo.(type) {
	case credentials.TLSInfo:
		info = auth
	case interface{ TLS() credentials.TLSInfo }:
		info = auth.TLS()
	default:
		return pki.Client{}, nil, errors.New("the connection has no TLS")
	}
	if len(info.State.VerifiedChains) == 0 {
		return pki.Client{}, nil, errors.New("the connection has no verified client certificate")
	}
	certificate := info.State.VerifiedChains[0][0]
	client, err := pki.PeerClient(certificate)
	return client, certificate, err
}

// callBurst is for how many seconds a tenant that was quiet may make all of its calls at once.
const callBurst = 10

// LimitCalls returns the interceptors that refuse the calls of a tenant beyond limit() in a second
// with ResourceExhausted, so that no tenant keeps a server from the others with calls
// (docs/server-reference.md#limits). They must follow those of Authorize, and those that refuse revoked
// certificates: a client with a revoked certificate would use up the calls of the tenant.
func LimitCalls(limit func() int) (grpc.UnaryServerInterceptor, grpc.StreamServerInterceptor) {
	var tenants clientrate.Limits
	check := func(tenant string) error {
		most := limit()
		if tenants.Allow(tenant, rate.Limit(most), callBurst*most) {
			return nil
		}
		return status.Errorf(codes.ResourceExhausted,
			"tenant %s makes more than %d calls a second, which is the most that this shard allows (shard.max_calls_per_second)", tenant, most)
	}
	unary := func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if err := check(clientFrom(ctx).Tenant); err != nil {
			return nil, err
		}
		return handler(ctx, request)
	}
	stream := func(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		if err := check(clientFrom(stream.Context()).Tenant); err != nil {
			return err
		}
		return handler(server, stream)
	}
	return unary, stream
}

// NameRequest is the interceptor that puts the request id of a call and its client into the
// context, so that every log line of the call has the id. It must follow the interceptor of
// Authorize.
func NameRequest(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return handler(audit.WithRequest(ctx, audit.Request{ID: requestID(ctx), Writer: writer(ctx)}), request)
}

// requestID returns the request id that the client has sent. A missing or invalid id is
// replaced by a new id, and not logged: it could forge log lines.
func requestID(ctx context.Context) string {
	sent := metadata.ValueFromIncomingContext(ctx, audit.RequestIDKey)
	if len(sent) == 1 && audit.ValidRequestID(sent[0]) {
		return sent[0]
	}
	return audit.NewRequestID()
}

// writer returns the client of a call as its certificate names it, with the serial number,
// because several clients may have the same id.
func writer(ctx context.Context) string {
	client := clientFrom(ctx)
	certificate := certificateFrom(ctx)
	if certificate == nil || certificate.SerialNumber == nil {
		return client.ID
	}
	return fmt.Sprintf("%s, certificate %s", client.ID, certificate.SerialNumber.Text(16))
}

// Count returns the interceptors that count calls by method and code in
// nstance_server_rpc_total, including rejected calls. A stream is counted when it is closed;
// until then nstance_server_streams counts it. Other calls have a duration.
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
