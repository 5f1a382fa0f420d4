// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"context"
	"crypto/x509"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/instancestore"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/registration"
)

// agentOf is a registered agent.
type agentOf struct {
	t *testing.T
	*Registrar
	id string
}

func (a *agentOf) register(seed byte) (*x509.Certificate, error) {
	_, keyPEM := newKey(a.t, seed)
	return a.Register(a.t.Context(), Request{Token: newNonce(a.t, a.id), PublicKeyPEM: keyPEM})
}

func (a *agentOf) client() pki.Client {
	return pki.Client{ID: a.id, Tenant: "default", Role: pki.RoleAgent}
}

func (a *agentOf) renew(present *x509.Certificate, seed byte) (*x509.Certificate, error) {
	_, keyPEM := newKey(a.t, seed)
	return a.Renew(a.t.Context(), a.client(), present, keyPEM)
}

func (a *agentOf) admit(certificate *x509.Certificate) error {
	_, err := a.Admit(a.t.Context(), a.client(), certificate)
	return err
}

func newAgent(t *testing.T) (*agentOf, *x509.Certificate) {
	r, id := newRegistrar(t)
	a := &agentOf{t: t, Registrar: r, id: id}
	certificate, err := a.register(1)
	require.NoError(t, err)
	return a, certificate
}

// A copied key is of no use after the agent has renewed its certificate for another one.
func TestAnAgentReplacesItsKey(t *testing.T) {
	a, first := newAgent(t)
	_, err := a.renew(first, 2)
	require.NoError(t, err)
	// The agent may have lost the response, and repeat it, or choose another key.
	require.NoError(t, a.admit(first))
	lost, err := a.renew(first, 3)
	require.NoError(t, err)
	second, err := a.renew(first, 2)
	require.NoError(t, err)
	require.ErrorIs(t, a.admit(lost), instancestore.ErrOtherKey)

	require.NoError(t, a.admit(second))
	// Streams of the connection before still end without an error. The replaced key gets no
	// certificate.
	require.NoError(t, a.admit(first))
	_, err = a.renew(first, 4)
	require.ErrorIs(t, err, ErrInstance)
	require.ErrorIs(t, err, instancestore.ErrOtherKey)
	_, err = a.register(1)
	require.ErrorIs(t, err, instancestore.ErrOtherKey)
	i, _ := a.Instances.Get(a.id)
	assert.WithinRange(t, i.Registration.PreviousUntil, time.Now().Add(keyGrace/2), time.Now().Add(keyGrace))
	assert.Equal(t, second.SerialNumber.Text(16), i.Registration.CertSerial)

	// The time is over.
	require.NoError(t, a.Instances.Register(t.Context(), a.id, func(present *instance.Registration) (instance.Registration, error) {
		changed := *present
		changed.PreviousUntil = time.Now().Add(-time.Second)
		return changed, nil
	}))
	err = a.admit(first)
	require.ErrorIs(t, err, ErrInstance)
	require.ErrorIs(t, err, instancestore.ErrOtherKey)
	require.NoError(t, a.admit(second))
	third, err := a.renew(second, 2)
	require.NoError(t, err, "for the same key")
	require.NoError(t, a.admit(third))
	require.NoError(t, a.admit(second))
}

// An agent that has stored a certificate for another key, and not used it before it expired,
// registers with the other key.
func TestAnAgentRegistersAgainWithItsNextKey(t *testing.T) {
	a, first := newAgent(t)
	_, err := a.renew(first, 2)
	require.NoError(t, err)
	_, err = a.register(3)
	require.ErrorIs(t, err, instancestore.ErrOtherKey)
	again, err := a.register(2)
	require.NoError(t, err)
	require.NoError(t, a.admit(again))
	_, err = a.register(1)
	require.ErrorIs(t, err, instancestore.ErrOtherKey)
}

// A nonce that was created before the certificates of its instance were revoked is of no use to
// the owner of the revoked key.
func TestARevokedAgentDoesNotRegisterAgain(t *testing.T) {
	a, _ := newAgent(t)
	_, keyPEM := newKey(t, 1)
	token := newNonce(t, a.id)
	require.NoError(t, registration.RevokeAgent(t.Context(), a.AuditLog.Store, "a", a.id, ""))
	_, err := a.Register(t.Context(), Request{Token: token, PublicKeyPEM: keyPEM})
	require.ErrorIs(t, err, registration.ErrInvalidNonce)
	require.ErrorContains(t, err, "were revoked")
	lost := errors.New("the storage does not respond")
	a.Revoked = func(context.Context) (*registration.RevokedAgents, error) { return nil, lost }
	_, err = a.Register(t.Context(), Request{Token: token, PublicKeyPEM: keyPEM})
	require.ErrorIs(t, err, lost)
}
