// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/instancestore"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/registration"
)

// renewExpired returns a certificate for an agent whose last certificate has expired because no
// server has renewed it for a while. It is for the same key, which the caller has proven to have,
// and which must be the registered key of an instance that exists. The next renewal replaces the
// key. The error wraps registration.ErrInvalidNonce if a nonce is needed instead.
func (r *Registrar) renewExpired(ctx context.Context, request Request) (*x509.Certificate, error) {
	client, expired, err := r.Authority.VerifyExpired(request.Expired)
	if err == nil && client.Role != pki.RoleAgent {
		err = fmt.Errorf("it is the certificate of %q, needs to be of %q", client.Role, pki.RoleAgent)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: expired certificate: %w", registration.ErrInvalidNonce, err)
	}
	key, err := parseKey(request.PublicKeyPEM)
	if err != nil {
		return nil, err
	}
	if !key.Equal(expired.PublicKey) {
		return nil, fmt.Errorf("%w: it is not the key of the expired certificate", registration.ErrPublicKey)
	}
	revoked, err := r.Revoked(ctx)
	if err != nil {
		return nil, fmt.Errorf("renew the expired certificate of the agent of instance %s: %w", client.ID, err)
	}
	if err := revoked.Check(client.ID, expired); err != nil {
		return nil, fmt.Errorf("%w: %w", registration.ErrInvalidNonce, err)
	}
	if i, found := r.Instances.Get(client.ID); found && i.Registration == nil {
		// Admit would restore the registration. An expired certificate may have had another key
		// than the last one.
		return nil, fmt.Errorf("%w: the registration of instance %s was lost", registration.ErrInvalidNonce, client.ID)
	}
	i, err := r.Admit(ctx, client, expired)
	if err == nil && i.BeingDeleted() {
		err = fmt.Errorf("%w: instance %s is being deleted", ErrInstance, i.ID)
	}
	if errors.Is(err, ErrInstance) {
		err = fmt.Errorf("%w: %w", registration.ErrInvalidNonce, err)
	}
	if err != nil {
		return nil, err
	}
	if provider.ChecksSource(r.Groups.Config().Shard.Infra.Options) {
		err = compareSource(&i, request.Source)
		switch {
		case errors.Is(err, errNoAddress):
			r.Refresh(i.ID)
			return nil, fmt.Errorf("renew the expired certificate of the agent of instance %s: %w", i.ID, err)
		case err != nil:
			return nil, r.refuse(ctx, &i, err)
		}
	}
	certificate, err := r.issue(ctx, &i, key, request.Trusted, "renewal of an expired certificate",
		func(present *instance.Registration, next instance.Registration) (instance.Registration, error) {
			if present == nil || present.PublicKeyPEM != next.PublicKeyPEM {
				return next, instancestore.ErrOtherKey
			}
			renewed := *present
			renewed.CertSerial, renewed.ExpiresAt, renewed.Trust = next.CertSerial, next.ExpiresAt, next.Trust
			return renewed, nil
		})
	if isRefused(err) {
		err = fmt.Errorf("%w: %w", registration.ErrInvalidNonce, err)
	}
	if err != nil {
		return nil, fmt.Errorf("renew the expired certificate of the agent of instance %s: %w", i.ID, err)
	}
	klog.FromContext(ctx).Info("Renewed the expired certificate of an agent", "instance", i.ID, "tenant", i.Tenant, "group", i.Group,
		"expired", expired.NotAfter, "serial", certificate.SerialNumber.Text(16), "expires", certificate.NotAfter)
	return certificate, nil
}

// Renew returns a certificate with the same identity as the present certificate, for the same key
// or another. The present certificate stays valid, until keyGrace after another key is used.
// trusted are the fingerprints of the authorities that the agent trusts, none if it does not say so.
func (r *Registrar) Renew(ctx context.Context, client pki.Client, present *x509.Certificate, publicKeyPEM []byte, trusted ...string) (*x509.Certificate, error) {
	i, err := r.Admit(ctx, client, present)
	if err != nil {
		return nil, err
	}
	if i.DeleteReason != "" {
		return nil, fmt.Errorf("%w: instance %s is being deleted", ErrInstance, i.ID)
	}
	key, err := parseKey(publicKeyPEM)
	if err != nil {
		return nil, err
	}
	own, err := registered(present)
	if err != nil {
		return nil, err
	}
	renew := func(stored *instance.Registration, next instance.Registration) (instance.Registration, error) {
		// A replaced key must not choose the next one.
		if stored == nil || stored.PublicKeyPEM != own.PublicKeyPEM {
			return next, instancestore.ErrOtherKey
		}
		renewed := withNextKey(*stored, next.PublicKeyPEM)
		renewed.CertSerial, renewed.ExpiresAt = next.CertSerial, next.ExpiresAt
		// The agent may not receive the next certificate, and has the present one.
		renewed.Trust = r.Authority.Trust(present, trusted)
		return renewed, nil
	}
	certificate, err := r.issue(ctx, &i, key, trusted, "renewal", renew)
	if isRefused(err) {
		err = fmt.Errorf("%w: %w", ErrInstance, err)
	}
	if err != nil {
		return nil, fmt.Errorf("renew the certificate of the agent of instance %s: %w", i.ID, err)
	}
	klog.FromContext(ctx).Info("Renewed the certificate of agent",
		"serial", certificate.SerialNumber.Text(16), "expires", certificate.NotAfter)
	return certificate, nil
}
