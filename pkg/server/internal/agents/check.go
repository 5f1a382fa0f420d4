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
	"nstance.dev/operator/pkg/server/provision"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/registration/nonce"
)

// checkNonce returns the instance of a nonce whose signature and times are valid. The
// error says why the nonce is not for an instance that may register at this shard.
func (r *Registrar) checkNonce(c nonce.Claims) (instance.Instance, error) {
	config := r.Groups.Config()
	switch {
	case c.Kind != pki.RoleAgent:
		return instance.Instance{}, fmt.Errorf("%w: it is for kind %q, needs to be for %q", nonce.ErrInvalid, c.Kind, pki.RoleAgent)
	case c.ClusterID != config.ClusterID:
		return instance.Instance{}, fmt.Errorf("%w: it is for cluster %q, this is %q", registration.ErrMismatch, c.ClusterID, config.ClusterID)
	case c.Shard != config.Shard.ID:
		return instance.Instance{}, fmt.Errorf("%w: it is for shard %q, this is %q", registration.ErrMismatch, c.Shard, config.Shard.ID)
	}
	id, err := puidv7.Parse(c.Subject)
	if err != nil {
		return instance.Instance{}, fmt.Errorf("%w: %w", nonce.ErrInvalid, err)
	}
	i, found := r.Instances.Get(c.Subject)
	switch {
	case !found:
		return instance.Instance{}, fmt.Errorf("%w: instance %s is not known", nonce.ErrInvalid, c.Subject)
	case i.Tenant != c.Tenant:
		return instance.Instance{}, fmt.Errorf("%w: instance %s is not of tenant %q", registration.ErrMismatch, c.Subject, c.Tenant)
	case !i.DeletedAt.IsZero():
		return instance.Instance{}, fmt.Errorf("%w: instance %s was deleted", nonce.ErrInvalid, c.Subject)
	case i.BeingDeleted():
		return instance.Instance{}, fmt.Errorf("%w: instance %s is being deleted", nonce.ErrInvalid, c.Subject)
	}
	if kind, known := r.kindOf(&i); known && id.Prefix != kind {
		return instance.Instance{}, fmt.Errorf("%w: instance %s is not of kind %q", nonce.ErrInvalid, c.Subject, kind)
	}
	return i, nil
}

// kindOf returns the kind of the template that an instance was created from. It is not
// known of an instance that was created from another configuration.
func (r *Registrar) kindOf(i *instance.Instance) (string, bool) {
	group, found := r.Groups.Get(i.Key())
	if !found || group.InfraConfigHash != i.InfraConfigHash {
		return "", false
	}
	effective, err := provision.Effective(r.Groups.Config(), group, &i.Record)
	if err != nil {
		return "", false
	}
	return effective.Kind, true
}

// Admit returns the instance of an agent whose certificate chains to the authority. The
// error wraps ErrInstance if calls with the certificate are not served.
//
// A record that was lost is created again without a registration, and the agent, whose
// nonce has expired, cannot register again. Its certificate proves that it has
// registered: the registration is stored again.
func (r *Registrar) Admit(ctx context.Context, client pki.Client, certificate *x509.Certificate) (instance.Instance, error) {
	i, found := r.Instances.Get(client.ID)
	switch {
	case !found:
		return i, fmt.Errorf("%w: instance %s is not known", ErrInstance, client.ID)
	case !i.DeletedAt.IsZero():
		return i, fmt.Errorf("%w: instance %s was deleted", ErrInstance, client.ID)
	case i.Tenant != client.Tenant:
		return i, fmt.Errorf("%w: instance %s is not of tenant %q", ErrInstance, client.ID, client.Tenant)
	}
	own, err := registered(certificate)
	if err != nil {
		return i, err
	}
	if i.Registration == nil {
		if err := r.restore(ctx, &i, certificate, own); err != nil {
			return i, err
		}
	}
	if i.Registration.PublicKeyPEM != own.PublicKeyPEM {
		return i, fmt.Errorf("%w: %w", ErrInstance, instancestore.ErrOtherKey)
	}
	return i, nil
}

// restore stores the registration that a certificate proves, unless there is one.
func (r *Registrar) restore(ctx context.Context, i *instance.Instance, certificate *x509.Certificate, own instance.Registration) error {
	own.RegisteredAt = certificate.NotBefore.Add(pki.ClockSkew)
	err := r.Instances.Register(ctx, i.ID, func(present *instance.Registration) (instance.Registration, error) {
		if present != nil {
			own = *present
		}
		return own, nil
	})
	switch {
	case errors.Is(err, instancestore.ErrUnknown) || errors.Is(err, instancestore.ErrOtherKey):
		return fmt.Errorf("%w: %w", ErrInstance, err)
	case err != nil:
		return fmt.Errorf("store the registration of instance %s again: %w", i.ID, err)
	}
	klog.FromContext(ctx).Info("Stored the registration of an agent again, which was lost", "instance", i.ID)
	i.Registration = &own
	r.Registered(*i)
	return nil
}
