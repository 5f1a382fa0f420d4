// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package registration issues client certificates to operators: the first for a nonce, the
// next ones for the previous certificate. It also signs and verifies the nonces of operators
// and agents (docs/server.md#registration).
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

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/internal/leader"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/storage"
)

// DefaultTenant is the tenant that every cluster has.
const DefaultTenant = "default"

// Errors that callers distinguish. The errors of a Registrar wrap them,
// ErrInvalidNonce, auditlog.ErrTooMany or leader.ErrNotLeading.
var (
	// ErrMismatch means that the nonce is valid, but not for an operator of this
	// cluster.
	ErrMismatch = errors.New("registration nonce does not fit this cluster")
	// ErrPublicKey means that no certificate can be issued for the public key.
	ErrPublicKey = errors.New("public key is not usable")
)

// errNotLeading names the cluster, since the server may lead its shard.
var errNotLeading = fmt.Errorf("only the leader of the cluster issues certificates: %w", leader.ErrNotLeading)

// Registrar registers operators while its server leads the cluster. It is safe for
// concurrent use. All fields are mandatory.
type Registrar struct {
	ClusterID string
	Keys      *clusterkeys.Keys
	// Store rejects writes while the server does not lead the cluster.
	Store storage.Store
	// Leading reports whether the server leads the cluster.
	Leading func() bool
	// Config returns the configuration in force.
	Config func() *config.Config

	limits auditlog.Limits
}

// Register returns a certificate for the public key, PEM, of the operator that the
// nonce in token names. A nonce is valid for one key: a client that got no response
// may retry with the same key. trusted are the fingerprints of the authorities that the client
// trusts, none if it does not say so.
func (r *Registrar) Register(ctx context.Context, token string, publicKeyPEM []byte, trusted ...string) (*x509.Certificate, error) {
	if !r.Leading() {
		return nil, errNotLeading
	}
	nonces := NonceVerifier{Key: r.Keys.Nonce.Public().(ed25519.PublicKey), Authority: r.Keys.Authority, Store: r.Store}
	claims, err := nonces.Verify(ctx, token)
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
	first, err := r.claim(ctx, token, key)
	if err != nil {
		return nil, err
	}
	client := pki.Client{ID: claims.Subject, Tenant: claims.Tenant, Role: pki.RoleOperator}
	entry := auditlog.Entry{Reason: claims.Reason(), Nonce: storage.OperatorNonceKey(token)}
	certificate, err := r.issue(ctx, client, key, trusted, entry, func(record *Record, next Record) (Record, error) {
		if err := record.checkNonce(claims, first); err != nil {
			return Record{}, err
		}
		next.RegisteredAt = time.Now().UTC()
		if record == nil {
			return record.issued(next, "", time.Time{}), nil
		}
		return record.issued(next, record.CertSerial, record.ExpiresAt), nil
	})
	if err != nil {
		return nil, fmt.Errorf("register operator %q of tenant %q: %w", client.ID, client.Tenant, err)
	}
	klog.FromContext(ctx).Info("Registered operator", "client", client.ID, "tenant", client.Tenant,
		"serial", serial(certificate), "expires", certificate.NotAfter)
	return certificate, nil
}

// checkNonce returns an error if the nonce was created before the last revocation. If the
// nonce has no time of creation, only its first use is accepted then.
func (r *Record) checkNonce(claims NonceClaims, first bool) error {
	if r == nil || r.RevokedAt.IsZero() {
		return nil
	}
	// The times in a nonce are whole seconds.
	revoked := r.RevokedAt.Truncate(time.Second)
	if claims.CreatedAt.IsZero() && first || !claims.CreatedAt.IsZero() && !claims.CreatedAt.Before(revoked) {
		return nil
	}
	return fmt.Errorf("%w: it was created before certificates of the tenant were revoked at %s", ErrInvalidNonce, r.RevokedAt.Format(time.RFC3339))
}

// Renew returns a certificate with the same identity as the client's present certificate, for
// the same public key, PEM, or another. The present certificate is accepted for another
// Grace, so a client that got no response can call again. A certificate that was issued for
// such a call and never used is no longer accepted.
//
// The tenant need not be configured: after its last static group was removed from the
// configuration, a tenant still has its dynamic groups. trusted is as in Register.
func (r *Registrar) Renew(ctx context.Context, client pki.Client, present *x509.Certificate, publicKeyPEM []byte, trusted ...string) (*x509.Certificate, error) {
	if !r.Leading() {
		return nil, errNotLeading
	}
	key, err := parsePublicKey(publicKeyPEM)
	if err != nil {
		return nil, err
	}
	entry := auditlog.Entry{Reason: "renewal", Writer: audit.RequestFrom(ctx).Writer, RequestID: audit.RequestFrom(ctx).ID}
	certificate, err := r.issue(ctx, client, key, trusted, entry, func(record *Record, next Record) (Record, error) {
		// The certificate may have been revoked since the call was accepted.
		if err := record.Check(present, time.Now()); err != nil {
			return Record{}, err
		}
		return record.issued(next, serial(present), present.NotAfter), nil
	})
	if err != nil {
		return nil, fmt.Errorf("renew the certificate of operator %q of tenant %q: %w", client.ID, client.Tenant, err)
	}
	klog.FromContext(ctx).Info("Renewed the certificate of operator",
		"serial", serial(certificate), "expires", certificate.NotAfter)
	return certificate, nil
}

// check returns an error if the nonce is not for an operator of this cluster.
func (r *Registrar) check(c NonceClaims) error {
	switch {
	case c.Kind != pki.RoleOperator:
		return fmt.Errorf("%w: it is for kind %q, needs to be for %q", ErrInvalidNonce, c.Kind, pki.RoleOperator)
	case c.ClusterID != r.ClusterID:
		return fmt.Errorf("%w: it is for cluster %q, this is %q", ErrMismatch, c.ClusterID, r.ClusterID)
	case c.Subject != c.ClusterID:
		return fmt.Errorf("%w: its subject is %q, needs to be the cluster id %q", ErrMismatch, c.Subject, c.ClusterID)
	}
	// The signature shows that an administrator has made the nonce for this tenant. Groups of
	// the tenant are not necessary: its operator may create the first.
	if err := identifier.Validate(c.Tenant); err != nil {
		return fmt.Errorf("%w: its tenant: %w", ErrMismatch, err)
	}
	return nil
}

// claim binds a nonce to the first key that it is used with. The claim is stored
// in one write, so it also binds the next leader, and applies when this server
// stops before it has responded. claim reports whether this is the first use.
func (r *Registrar) claim(ctx context.Context, token string, key ed25519.PublicKey) (first bool, err error) {
	name := storage.OperatorNonceKey(token)
	keyPEM, err := keys.EncodePublic(key)
	if err != nil {
		return false, fmt.Errorf("encode the public key: %w", err)
	}
	_, err = r.Store.Create(ctx, name, keyPEM)
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, storage.ErrConflict) {
		return false, fmt.Errorf("claim the registration nonce: %w", err)
	}
	object, err := r.Store.Get(ctx, name)
	if err != nil {
		return false, fmt.Errorf("read the claim of the registration nonce: %w", err)
	}
	claimed, err := keys.ParsePublic(object.Data)
	if err != nil {
		return false, fmt.Errorf("read the claim of the registration nonce: object %s: %w", name, err)
	}
	if !bytes.Equal(claimed, key) {
		return false, fmt.Errorf("%w: it has been used with another public key", ErrInvalidNonce)
	}
	return false, nil
}

// issue signs a certificate and records it. It returns no certificate without a record, and none
// without an entry in the audit log, which it completes. change returns the record to store. It
// gets the present record, which may be nil, and next, which describes the certificate.
func (r *Registrar) issue(
	ctx context.Context, client pki.Client, key ed25519.PublicKey, trusted []string, entry auditlog.Entry, change func(record *Record, next Record) (Record, error),
) (*x509.Certificate, error) {
	if err := r.limits.Check(client.Tenant + "." + client.ID); err != nil {
		return nil, err
	}
	certificate, err := r.Keys.Authority.SignClient(client, key, r.Config().OperatorCertificateTTL)
	if err != nil {
		return nil, err
	}
	keyPEM, err := keys.EncodePublic(key)
	if err != nil {
		return nil, fmt.Errorf("encode the public key: %w", err)
	}
	next := Record{
		ClientID:     client.ID,
		Tenant:       client.Tenant,
		PublicKeyPEM: string(keyPEM),
		CertSerial:   serial(certificate),
		ExpiresAt:    certificate.NotAfter,
		Trust:        r.Keys.Authority.Trust(certificate, trusted),
	}
	err = updateRecord(ctx, r.Store, client.Tenant, client.ID, func(record *Record) (Record, error) { return change(record, next) })
	if err != nil {
		return nil, err
	}
	entry.Action, entry.Name, entry.ExpiresAt = audit.IssueCertificate, next.CertSerial, next.ExpiresAt
	entry.Tenant, entry.Client = client.Tenant, client.ID
	if err := (auditlog.Log{Store: r.Store, Scope: storage.ClusterAuditLog}).Write(ctx, entry); err != nil {
		return nil, err
	}
	return certificate, nil
}

func parsePublicKey(keyPEM []byte) (ed25519.PublicKey, error) {
	key, err := keys.ParsePublic(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPublicKey, err)
	}
	return key, nil
}
