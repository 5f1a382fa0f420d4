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

	"nstance.dev/operator/pkg/identifier"
	"nstance.dev/operator/pkg/server/leader"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/registration"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Issuer issues the certificates of clients that have one.
type Issuer interface {
	// Renew returns a certificate that says of a client what its present one
	// says, for the same public key, PEM, or another. Its errors are those of
	// registration.Registrar.
	Renew(ctx context.Context, client pki.Client, publicKeyPEM []byte) (*x509.Certificate, error)
}

// RenewCertificate gives the caller its next certificate, also while there is no
// term: who leads the cluster need not lead this shard. FailedPrecondition
// tells that another server leads the cluster, InvalidArgument that the public
// key is bad, Unavailable that the same call may work later.
func (g *Gate) RenewCertificate(ctx context.Context, request *nstancev1.RenewCertificateRequest) (*nstancev1.RenewCertificateResponse, error) {
	client := clientFrom(ctx)
	// The tenant becomes part of a storage key.
	if err := identifier.Validate(client.Tenant); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "tenant: %v", err)
	}
	certificate, err := g.Issuer.Renew(ctx, client, request.GetPublicKeyPem())
	if err != nil {
		klog.FromContext(ctx).Info("Refused to renew a certificate", "reason", err.Error())
		return nil, renewalStatus(err)
	}
	return &nstancev1.RenewCertificateResponse{
		ClientCertificatePem: pki.EncodeCertificate(certificate),
		ExpiresAt:            timestamppb.New(certificate.NotAfter),
	}, nil
}

// renewalStatus gives an error of a renewal its code. The wire contract leaves
// all but FailedPrecondition open.
func renewalStatus(err error) error {
	code := codes.Unavailable
	switch {
	case errors.Is(err, leader.ErrNotLeading):
		code = codes.FailedPrecondition
	case errors.Is(err, registration.ErrPublicKey):
		code = codes.InvalidArgument
	}
	return status.Error(code, err.Error())
}
