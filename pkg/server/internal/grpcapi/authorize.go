// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"crypto/x509"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

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

// Authorize returns the interceptors that accept only clients with a role, and
// put the client into the context of the handlers. A certificate without a valid
// client is rejected with Unauthenticated, one with another role with
// PermissionDenied (docs/protocol.md#authentication). Handlers log with logger.
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
