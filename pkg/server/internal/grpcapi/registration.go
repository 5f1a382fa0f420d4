// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"crypto/x509"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/internal/leader"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/registration"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Registrar registers operators.
type Registrar interface {
	// Register returns a certificate for the public key, PEM, of the operator that the nonce
	// in token names. Its errors are the errors of registration.Registrar.
	Register(ctx context.Context, token string, publicKeyPEM []byte, trusted ...string) (*x509.Certificate, error)
}

// RegistrationService implements the gRPC service RegistrationService. Its clients are
// anonymous.
type RegistrationService struct {
	nstancev1.UnimplementedRegistrationServiceServer

	Registrar Registrar
	// Authority has the authorities that clients trust.
	Authority *pki.Authority
	// Agents registers agents while this server leads its shard. It is nil if the server
	// serves no agents.
	Agents *AgentGate
	// Logger logs the calls.
	Logger klog.Logger
}

// RegisterAgent returns the first certificate of an instance's agent. The code is Unavailable
// if another server leads the shard or the storage fails, Unauthenticated if the nonce is
// invalid or its instance may not register, and InvalidArgument for a nonce of another shard,
// cluster or tenant, for an invalid public key and for an invalid address. A server that
// serves no agents returns Unimplemented (docs/protocol.md#registration).
func (s *RegistrationService) RegisterAgent(ctx context.Context, request *nstancev1.RegisterClientRequest) (*nstancev1.RegisterClientResponse, error) {
	if s.Agents == nil {
		return s.UnimplementedRegistrationServiceServer.RegisterAgent(ctx, request)
	}
	return forward(klog.NewContext(ctx, s.Logger), &s.Agents.termGate, request, (*AgentService).register)
}

// RegisterOperator returns the first certificate of a tenant's operator. The code is
// FailedPrecondition if another server leads the cluster, Unauthenticated if the nonce is
// invalid or was used, InvalidArgument for a nonce of another cluster, Unavailable for too many
// calls, and Internal for an invalid public key or if the storage fails
// (docs/protocol.md#registration).
func (s *RegistrationService) RegisterOperator(ctx context.Context, request *nstancev1.RegisterClientRequest) (*nstancev1.RegisterClientResponse, error) {
	ctx = klog.NewContext(ctx, s.Logger)
	if err := checkPossession(request); err != nil {
		return nil, err
	}
	certificate, err := s.Registrar.Register(ctx, request.GetRegistrationNonceJwt(), request.GetPublicKeyPem(), request.GetTrustedAuthorities()...)
	if err != nil {
		s.Logger.Info("Rejected a registration", "reason", err.Error())
		return nil, withCode(err, codes.Internal, map[error]codes.Code{
			leader.ErrNotLeading:         codes.FailedPrecondition,
			registration.ErrInvalidNonce: codes.Unauthenticated,
			registration.ErrMismatch:     codes.InvalidArgument,
			auditlog.ErrTooMany:          codes.Unavailable,
		})
	}
	return &nstancev1.RegisterClientResponse{
		ClientCertificatePem: pki.EncodeCertificate(certificate),
		ExpiresAt:            timestamppb.New(certificate.NotAfter),
		AuthoritiesPem:       s.Authority.CertificatePEM(),
	}, nil
}

// Issuer renews the certificates of clients.
type Issuer interface {
	// Renew returns a certificate with the same identity as the client's present certificate,
	// for the same public key, PEM, or another. Its errors are the errors of
	// registration.Registrar.
	Renew(ctx context.Context, client pki.Client, present *x509.Certificate, publicKeyPEM []byte, trusted ...string) (*x509.Certificate, error)
}

// RenewCertificate returns the client's next certificate, also while there is no term: the
// leader of the cluster need not lead this shard. The code is FailedPrecondition if another
// server leads the cluster, InvalidArgument for an invalid public key, Unauthenticated for a
// certificate that is no longer accepted, and Unavailable if the same call may succeed later
// (docs/protocol.md#certificates).
func (g *Gate) RenewCertificate(ctx context.Context, request *nstancev1.RenewCertificateRequest) (*nstancev1.RenewCertificateResponse, error) {
	client := clientFrom(ctx)
	// The tenant becomes part of a storage key.
	if err := identifier.Validate(client.Tenant); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "tenant: %v", err)
	}
	if err := checkPossession(request); err != nil {
		return nil, err
	}
	certificate, err := g.Issuer.Renew(ctx, client, certificateFrom(ctx), request.GetPublicKeyPem(), request.GetTrustedAuthorities()...)
	if err != nil {
		klog.FromContext(ctx).Info("Rejected the renewal of a certificate", "reason", err.Error())
		return nil, withCode(err, codes.Unavailable, map[error]codes.Code{
			leader.ErrNotLeading:      codes.FailedPrecondition,
			registration.ErrPublicKey: codes.InvalidArgument,
			registration.ErrExpired:   codes.Unauthenticated,
			registration.ErrRevoked:   codes.Unauthenticated,
			registration.ErrReplaced:  codes.Unauthenticated,
		})
	}
	return &nstancev1.RenewCertificateResponse{
		ClientCertificatePem: pki.EncodeCertificate(certificate),
		ExpiresAt:            timestamppb.New(certificate.NotAfter),
		AuthoritiesPem:       g.Authority.CertificatePEM(),
	}, nil
}

// keyRequest is a request for a certificate: RegisterClientRequest or RenewCertificateRequest.
type keyRequest interface {
	GetPublicKeyPem() []byte
	GetCertificateRequest() []byte
}

// checkPossession returns the status InvalidArgument for a certificate request that does not
// prove that the client has the private key.
func checkPossession(r keyRequest) error {
	request := keys.Request{PublicKeyPEM: r.GetPublicKeyPem(), CertificateRequest: r.GetCertificateRequest()}
	if err := request.Check(); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return nil
}

// withCode returns the gRPC status of err. err wraps at most one error of byError, whose code
// it gets, or else fallback.
func withCode(err error, fallback codes.Code, byError map[error]codes.Code) error {
	for target, code := range byError {
		if errors.Is(err, target) {
			return status.Error(code, err.Error())
		}
	}
	return status.Error(fallback, err.Error())
}
