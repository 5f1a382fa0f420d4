// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"crypto/x509"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/internal/leader"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/registration/nonce"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Registrar registers operators.
type Registrar interface {
	// Register returns a certificate for the public key, PEM, of the operator
	// that the nonce in token names. Its errors are those of
	// registration.Registrar.
	Register(ctx context.Context, token string, publicKeyPEM []byte) (*x509.Certificate, error)
}

// RegistrationService is the gRPC service of that name. Its clients are anonymous.
type RegistrationService struct {
	nstancev1.UnimplementedRegistrationServiceServer

	Registrar Registrar
	// Agents registers agents while this server leads its shard. It is nil if the server
	// serves no agents.
	Agents *AgentGate
	// Logger logs the calls.
	Logger klog.Logger
}

// RegisterAgent returns the first certificate of an instance's agent. The code is
// Unavailable when another server leads the shard and for storage that fails,
// Unauthenticated for a nonce that is invalid or not of an instance that may register,
// and InvalidArgument for a nonce of another shard, cluster or tenant, for an invalid
// public key and for an invalid address. A server that serves no agents returns
// Unimplemented (docs/protocol.md#registration).
func (s *RegistrationService) RegisterAgent(ctx context.Context, request *nstancev1.RegisterClientRequest) (*nstancev1.RegisterClientResponse, error) {
	if s.Agents == nil {
		return s.UnimplementedRegistrationServiceServer.RegisterAgent(ctx, request)
	}
	return forward(klog.NewContext(ctx, s.Logger), &s.Agents.termGate, request, (*AgentService).register)
}

// RegisterOperator returns the first certificate of a tenant's operator. The code
// is FailedPrecondition when another server leads the cluster, Unauthenticated for
// a nonce that is invalid or was used, InvalidArgument for a nonce of another
// cluster, and Internal for an invalid public key and for storage that fails
// (docs/protocol.md#registration).
func (s *RegistrationService) RegisterOperator(ctx context.Context, request *nstancev1.RegisterClientRequest) (*nstancev1.RegisterClientResponse, error) {
	ctx = klog.NewContext(ctx, s.Logger)
	certificate, err := s.Registrar.Register(ctx, request.GetRegistrationNonceJwt(), request.GetPublicKeyPem())
	if err != nil {
		s.Logger.Info("Rejected a registration", "reason", err.Error())
		return nil, withCode(err, codes.Internal, map[error]codes.Code{
			leader.ErrNotLeading:     codes.FailedPrecondition,
			nonce.ErrInvalid:         codes.Unauthenticated,
			registration.ErrMismatch: codes.InvalidArgument,
		})
	}
	return &nstancev1.RegisterClientResponse{
		ClientCertificatePem: pki.EncodeCertificate(certificate),
		ExpiresAt:            timestamppb.New(certificate.NotAfter),
	}, nil
}
