// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package registration gives operators their client certificates: the first for
// a nonce, the next ones for the certificate before (server document).
package registration

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/keys"
	"nstance.dev/operator/pkg/server/leader"
	"nstance.dev/operator/pkg/server/nonce"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/storage"
)

// DefaultTenant is the tenant that every cluster has.
const DefaultTenant = "default"

// Errors that callers tell apart. What a Registrar returns wraps them, or
// nonce.ErrInvalid or leader.ErrNotLeading, and says what is wrong.
var (
	// ErrMismatch: the nonce is good, but for no operator of this cluster.
	ErrMismatch = errors.New("registration nonce does not fit this cluster")
	// ErrPublicKey: the public key is not one that a certificate can be made for.
	ErrPublicKey = errors.New("public key is not usable")
)

// errNotLeading says what is led: a server may lead its shard all the same.
var errNotLeading = fmt.Errorf("only the leader of the cluster issues certificates: %w", leader.ErrNotLeading)

// Registrar registers operators while its server leads the cluster. It is safe
// for use by several goroutines. All fields are mandatory.
type Registrar struct {
	ClusterID string
	Keys      *keys.Keys
	// Store refuses writes while the server does not lead the cluster.
	Store storage.Store
	// Leading tells whether the server leads the cluster.
	Leading func() bool
	// Config returns the configuration in force.
	Config func() *config.Config
}

// Register returns a certificate for the public key, PEM, of the operator that a
// nonce was made for. A nonce is good for one key: a client that got no answer
// may try again with the same.
func (r *Registrar) Register(ctx context.Context, token string, publicKeyPEM []byte) (*x509.Certificate, error) {
	if !r.Leading() {
		return nil, errNotLeading
	}
	claims, err := nonce.Parse(token, r.Keys.Nonce.Public().(ed25519.PublicKey))
	if err != nil {
		return nil, err
	}
	if err := r.check(claims); err != nil {
		return nil, err
	}
	key, err := parsePublicKey(publicKeyPEM)
	if err != nil {
		return nil, err
	}
	if err := r.claim(ctx, token, key); err != nil {
		return nil, err
	}
	client := pki.Client{ID: claims.Subject, Tenant: claims.Tenant, Role: pki.RoleOperator}
	certificate, err := r.issue(ctx, client, key, time.Now())
	if err != nil {
		return nil, fmt.Errorf("registering operator %q of tenant %q: %w", client.ID, client.Tenant, err)
	}
	klog.FromContext(ctx).Info("Registered operator", "client", client.ID, "tenant", client.Tenant,
		"serial", serial(certificate), "expires", certificate.NotAfter)
	return certificate, nil
}

// Renew returns a certificate that says of a client what its present one says,
// for the same public key, PEM, or another.
//
// The tenant need not be configured, unlike for Register: a tenant whose last
// static group has left the configuration still has its dynamic groups, and its
// operator must not be locked out at the next renewal.
func (r *Registrar) Renew(ctx context.Context, client pki.Client, publicKeyPEM []byte) (*x509.Certificate, error) {
	if !r.Leading() {
		return nil, errNotLeading
	}
	key, err := parsePublicKey(publicKeyPEM)
	if err != nil {
		return nil, err
	}
	certificate, err := r.issue(ctx, client, key, time.Time{})
	if err != nil {
		return nil, fmt.Errorf("renewing the certificate of operator %q of tenant %q: %w", client.ID, client.Tenant, err)
	}
	klog.FromContext(ctx).Info("Renewed the certificate of operator",
		"serial", serial(certificate), "expires", certificate.NotAfter)
	return certificate, nil
}

// check refuses a nonce that is not for an operator of this cluster.
func (r *Registrar) check(c nonce.Claims) error {
	switch {
	case c.Kind != pki.RoleOperator:
		return fmt.Errorf("%w: it is for kind %q, needs to be for %q", nonce.ErrInvalid, c.Kind, pki.RoleOperator)
	case c.ClusterID != r.ClusterID:
		return fmt.Errorf("%w: it is for cluster %q, this is %q", ErrMismatch, c.ClusterID, r.ClusterID)
	case c.Subject != c.ClusterID:
		return fmt.Errorf("%w: its subject is %q, needs to be the cluster id %q", ErrMismatch, c.Subject, c.ClusterID)
	}
	// The configuration of a shard names only the tenants with groups there. The
	// server that leads the cluster answers for what it knows.
	if _, configured := r.Config().Groups[c.Tenant]; c.Tenant != DefaultTenant && !configured {
		return fmt.Errorf("%w: it is for tenant %q, which has no group in the configuration", ErrMismatch, c.Tenant)
	}
	return nil
}

// claim binds a nonce to the key that it is used with first. That is stored in
// one step, and so holds whatever server leads, and also when this one stops
// before it has answered.
func (r *Registrar) claim(ctx context.Context, token string, key ed25519.PublicKey) error {
	name := storage.OperatorNonceKey(token)
	keyPEM, err := pki.EncodePublicKey(key)
	if err != nil {
		return fmt.Errorf("encoding the public key: %w", err)
	}
	_, err = r.Store.Create(ctx, name, keyPEM)
	if err == nil {
		return nil
	}
	if !errors.Is(err, storage.ErrConflict) {
		return fmt.Errorf("claiming the registration nonce: %w", err)
	}
	object, err := r.Store.Get(ctx, name)
	if err != nil {
		return fmt.Errorf("reading who claimed the registration nonce: %w", err)
	}
	claimed, err := pki.ParsePublicKey(object.Data)
	if err != nil {
		return fmt.Errorf("reading who claimed the registration nonce: object %s: %w", name, err)
	}
	if !bytes.Equal(claimed, key) {
		return fmt.Errorf("%w: it has been used with another public key", nonce.ErrInvalid)
	}
	return nil
}

// issue signs a certificate and records it. Nobody gets a certificate that is
// not on record. A zero registered leaves that of the record as it is.
func (r *Registrar) issue(ctx context.Context, client pki.Client, key ed25519.PublicKey, registered time.Time) (*x509.Certificate, error) {
	certificate, err := r.Keys.Authority.SignClient(client, key, r.Config().OperatorCertificateTTL)
	if err != nil {
		return nil, err
	}
	keyPEM, err := pki.EncodePublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding the public key: %w", err)
	}
	err = putRecord(ctx, r.Store, Record{
		ClientID:     client.ID,
		Tenant:       client.Tenant,
		PublicKeyPEM: string(keyPEM),
		CertSerial:   serial(certificate),
		RegisteredAt: registered.UTC(),
		ExpiresAt:    certificate.NotAfter,
	})
	if err != nil {
		return nil, err
	}
	return certificate, nil
}

func parsePublicKey(keyPEM []byte) (ed25519.PublicKey, error) {
	key, err := pki.ParsePublicKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPublicKey, err)
	}
	return key, nil
}
