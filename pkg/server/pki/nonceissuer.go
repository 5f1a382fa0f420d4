// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package pki

import (
	"crypto/ed25519"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"time"

	"nstance.dev/operator/pkg/base/identifier"
)

// AllTenants is the only tenant of a nonce issuer that may make nonces of every tenant. No tenant
// has this id.
const AllTenants = "*"

const (
	// MaxNonceIssuerLifetime is how long the certificate of a nonce issuer may be valid.
	MaxNonceIssuerLifetime = 365 * 24 * time.Hour
	// maxIssuerTenants limits the size of the certificate, which each nonce has.
	maxIssuerTenants = 32
)

// nonceUsages are the extended key usages of the certificate of a nonce issuer
// (docs/protocol.md#nonce-issuers), by the role of the clients that its nonces are for.
var nonceUsages = map[string]asn1.ObjectIdentifier{
	RoleOperator: {1, 3, 6, 1, 4, 1, 999999, 3},
	RoleAgent:    {1, 3, 6, 1, 4, 1, 999999, 4},
}

// NonceIssuer is the identity in the certificate of a key that signs registration nonces. It is
// not a Client: its certificate is of no use in a handshake.
type NonceIssuer struct {
	// Name is the certificate's common name.
	Name string
	// Tenants are the certificate's organizations, sorted: the tenants whose nonces the issuer may
	// make, or AllTenants.
	Tenants []string
	// Roles are the roles of the clients whose nonces the issuer may make, sorted: RoleOperator or
	// RoleAgent.
	Roles []string
}

// Allows returns an error unless the issuer may make nonces for clients with a role and a tenant.
func (n NonceIssuer) Allows(role, tenant string) error {
	if !slices.Contains(n.Roles, role) {
		return fmt.Errorf("nonce issuer %q may not make nonces for role %q", n.Name, role)
	}
	if !slices.Contains(n.Tenants, AllTenants) && !slices.Contains(n.Tenants, tenant) {
		return fmt.Errorf("nonce issuer %q may not make nonces of tenant %q", n.Name, tenant)
	}
	return nil
}

// Validate returns an error unless a certificate can be issued to the issuer.
func (n NonceIssuer) Validate() error {
	if err := identifier.Validate(n.Name); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	if len(n.Tenants) == 0 || len(n.Tenants) > maxIssuerTenants {
		return fmt.Errorf("has %d tenants, needs 1 to %d", len(n.Tenants), maxIssuerTenants)
	}
	for _, tenant := range n.Tenants {
		if tenant == AllTenants && len(n.Tenants) == 1 {
			continue
		}
		if err := identifier.Validate(tenant); err != nil {
			return fmt.Errorf("tenant: %w", err)
		}
	}
	if len(n.Roles) == 0 {
		return errors.New("has no role, needs one at least")
	}
	for _, role := range n.Roles {
		if nonceUsages[role] == nil {
			return fmt.Errorf("role %q is unknown", role)
		}
	}
	return nil
}

// SignNonceIssuer issues the certificate of a nonce issuer for a public key.
func (a *Authority) SignNonceIssuer(n NonceIssuer, key ed25519.PublicKey, ttl time.Duration) (*x509.Certificate, error) {
	if err := n.Validate(); err != nil {
		return nil, fmt.Errorf("issue a certificate for nonce issuer %q: %w", n.Name, err)
	}
	if ttl <= 0 || ttl > MaxNonceIssuerLifetime {
		return nil, fmt.Errorf("issue a certificate for nonce issuer %q: the lifetime %s must be greater than zero and at most %s", n.Name, ttl, MaxNonceIssuerLifetime)
	}
	template, err := newTemplate(ttl)
	if err != nil {
		return nil, err
	}
	template.Subject = pkix.Name{CommonName: n.Name, Organization: n.Tenants}
	// A certificate without any extended key usage would be one of a client too.
	for _, role := range n.Roles {
		template.UnknownExtKeyUsage = append(template.UnknownExtKeyUsage, nonceUsages[role])
	}
	return a.sign(template, key)
}

// VerifyNonceIssuer returns the issuer, and the parsed certificate, of a certificate in DER that an
// accepted authority has issued to a nonce issuer and that is valid now.
func (a *Authority) VerifyNonceIssuer(der []byte) (NonceIssuer, *x509.Certificate, error) {
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return NonceIssuer{}, nil, fmt.Errorf("parse the certificate of the nonce issuer: %w", err)
	}
	// The usage is checked below: Verify does not know it.
	_, err = certificate.Verify(x509.VerifyOptions{
		Roots: a.current.Load().pool, CurrentTime: time.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return NonceIssuer{}, nil, fmt.Errorf("verify the certificate of the nonce issuer: %w", err)
	}
	issuer, err := ReadNonceIssuer(certificate)
	return issuer, certificate, err
}

// ReadNonceIssuer reads the issuer from a certificate. It verifies neither signature nor times.
func ReadNonceIssuer(certificate *x509.Certificate) (NonceIssuer, error) {
	issuer := NonceIssuer{Name: certificate.Subject.CommonName, Tenants: slices.Sorted(slices.Values(certificate.Subject.Organization))}
	for role, usage := range nonceUsages {
		if slices.ContainsFunc(certificate.UnknownExtKeyUsage, usage.Equal) {
			issuer.Roles = append(issuer.Roles, role)
		}
	}
	slices.Sort(issuer.Roles)
	if err := issuer.Validate(); err != nil {
		return NonceIssuer{}, fmt.Errorf("the certificate of %q is not one of a nonce issuer: %w", certificate.Subject, err)
	}
	if _, ok := certificate.PublicKey.(ed25519.PublicKey); !ok {
		return NonceIssuer{}, fmt.Errorf("the key of nonce issuer %q is %T, needs to be Ed25519", issuer.Name, certificate.PublicKey)
	}
	return issuer, nil
}
