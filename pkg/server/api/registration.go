// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api

import (
	"context"
	"crypto/x509"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/leader"
	"nstance.dev/operator/pkg/server/nonce"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/registration"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Registrar registers operators.
type Registrar interface {
	// Register returns a certificate for the public key, PEM, of the operator
	// that a nonce was made for. Its errors are those of registration.Registrar.
	Register(ctx context.Context, token string, publicKeyPEM []byte) (*x509.Certificate, error)
}

// RegistrationService is the service of that name. Its callers are anonymous.
// RegisterAgent answers Unimplemented.
type RegistrationService struct {
	nstancev1.UnimplementedRegistrationServiceServer

	Registrar Registrar
	// Logger is what calls are logged with.
	Logger klog.Logger
}

// RegisterOperator gives the operator of a tenant its first certificate. The
// codes are those of the wire contract: FailedPrecondition when another server
// leads the cluster, Unauthenticated for a nonce that is not valid or has been
// used, InvalidArgument for one that does not fit the cluster, and Internal for
// a bad public key and for storage that fails.
func (s *RegistrationService) RegisterOperator(ctx context.Context, request *nstancev1.RegisterClientRequest) (*nstancev1.RegisterClientResponse, error) {
	ctx = klog.NewContext(ctx, s.Logger)
	certificate, err := s.Registrar.Register(ctx, request.GetRegistrationNonceJwt(), request.GetPublicKeyPem())
	if err != nil {
		s.Logger.Info("Refused a registration", "reason", err.Error())
		return nil, registrationStatus(err)
	}
	return &nstancev1.RegisterClientResponse{
		ClientCertificatePem: pki.EncodeCertificate(certificate),
		ExpiresAt:            timestamppb.New(certificate.NotAfter),
	}, nil
}

// registrationStatus gives an error of a registration its code.
func registrationStatus(err error) error {
	code := codes.Internal
	switch {
	case errors.Is(err, leader.ErrNotLeading):
		code = codes.FailedPrecondition
	case errors.Is(err, nonce.ErrInvalid):
		code = codes.Unauthenticated
	case errors.Is(err, registration.ErrMismatch):
		code = codes.InvalidArgument
	}
	return status.Error(code, err.Error())
}
