// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agents

import (
	"context"
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/instancestore"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/registration"
)

// signExpired returns a certificate, PEM, that has expired.
func signExpired(t *testing.T, authority *pki.Authority, client pki.Client, key ed25519.PrivateKey) []byte {
	t.Helper()
	certificate, err := authority.SignClient(client, key.Public().(ed25519.PublicKey), -time.Second)
	require.NoError(t, err)
	require.True(t, certificate.NotAfter.Before(time.Now()))
	return pki.EncodeCertificate(certificate)
}

// TestAnExpiredCertificateIsRenewed: no server was there to renew it for as long as it was valid.
func TestAnExpiredCertificateIsRenewed(t *testing.T) {
	r, id := newRegistrar(t)
	key, keyPEM := newKey(t, 1)
	_, err := r.Register(t.Context(), Request{Token: newNonce(t, id), PublicKeyPEM: keyPEM})
	require.NoError(t, err)
	before, _ := r.Instances.Get(id)
	client := pki.Client{ID: id, Tenant: "default", Role: pki.RoleAgent}
	request := Request{PublicKeyPEM: keyPEM, Expired: signExpired(t, r.Authority, client, key)}
	renewed, err := r.Register(t.Context(), request)
	require.NoError(t, err)
	assert.True(t, renewed.NotAfter.After(time.Now()))
	stored, _ := r.Instances.Get(id)
	want := *before.Registration
	want.CertSerial, want.ExpiresAt = renewed.SerialNumber.Text(16), renewed.NotAfter
	assert.Equal(t, want, *stored.Registration)
	_, err = r.Admit(t.Context(), client, renewed)
	require.NoError(t, err)
}

// TestAnExpiredCertificateIsRefused: it gives nobody more than a valid certificate would.
func TestAnExpiredCertificateIsRefused(t *testing.T) {
	another, err := pki.NewAuthority("test")
	require.NoError(t, err)
	key, keyPEM := newKey(t, 1)
	otherKey, otherPEM := newKey(t, 2)
	var nonce = registration.ErrInvalidNonce
	for name, test := range map[string]struct {
		change func(r *Registrar, client *pki.Client, request *Request)
		// expired replaces the certificate.
		expired func(r *Registrar, client pki.Client) []byte
		want    error
		text    string
	}{
		"text":                 {expired: func(*Registrar, pki.Client) []byte { return []byte("x") }, want: nonce},
		"of another authority": {expired: func(_ *Registrar, c pki.Client) []byte { return signExpired(t, another, c, key) }, want: nonce, text: "signed by unknown authority"},
		"of an operator": {
			change: func(_ *Registrar, c *pki.Client, _ *Request) { c.Role = pki.RoleOperator },
			want:   nonce, text: `it is the certificate of "operator"`,
		},
		"of another tenant": {
			change: func(_ *Registrar, c *pki.Client, _ *Request) { c.Tenant = "other" },
			want:   nonce, text: `is not of tenant "other"`,
		},
		"of an unknown instance": {
			change: func(_ *Registrar, c *pki.Client, _ *Request) { c.ID = "knd06bgm7733st2576nx5jht4ecjw" },
			want:   nonce, text: "is not known",
		},
		"with another key in the request": {
			change: func(_ *Registrar, _ *pki.Client, request *Request) { request.PublicKeyPEM = otherPEM },
			want:   registration.ErrPublicKey,
		},
		"of a key that is not registered": {
			change:  func(_ *Registrar, _ *pki.Client, request *Request) { request.PublicKeyPEM = otherPEM },
			expired: func(r *Registrar, c pki.Client) []byte { return signExpired(t, r.Authority, c, otherKey) },
			want:    nonce,
		},
		"that is revoked": {
			change: func(r *Registrar, c *pki.Client, _ *Request) {
				r.Revoked = func(context.Context) (*registration.RevokedAgents, error) {
					return &registration.RevokedAgents{Instances: map[string]registration.AgentRevocation{c.ID: {Before: time.Now().Add(time.Hour)}}}, nil
				}
			},
			want: nonce, text: "revoked",
		},
		"while it is unknown what is revoked": {
			change: func(r *Registrar, _ *pki.Client, _ *Request) {
				r.Revoked = func(context.Context) (*registration.RevokedAgents, error) { return nil, context.DeadlineExceeded }
			},
			want: context.DeadlineExceeded,
		},
		"of an instance that is being deleted": {
			change: func(r *Registrar, c *pki.Client, _ *Request) {
				require.NoError(t, r.Instances.(*instancestore.Store).SetDeleting(t.Context(), c.ID, instance.ReasonScaleDown))
			},
			want: nonce, text: "is being deleted",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, id := newRegistrar(t)
			_, err := r.Register(t.Context(), Request{Token: newNonce(t, id), PublicKeyPEM: keyPEM})
			require.NoError(t, err)
			before, _ := r.Instances.Get(id)
			client, request := pki.Client{ID: id, Tenant: "default", Role: pki.RoleAgent}, Request{PublicKeyPEM: keyPEM}
			if test.change != nil {
				test.change(r, &client, &request)
			}
			request.Expired = signExpired(t, r.Authority, client, key)
			if test.expired != nil {
				request.Expired = test.expired(r, client)
			}
			_, err = r.Register(t.Context(), request)
			require.ErrorIs(t, err, test.want)
			require.ErrorContains(t, err, test.text)
			after, _ := r.Instances.Get(id)
			assert.Equal(t, before.Registration, after.Registration)
		})
	}
}

// TestAnExpiredCertificateRestoresNoRegistration: the key may have been replaced since.
func TestAnExpiredCertificateRestoresNoRegistration(t *testing.T) {
	r, id := newRegistrar(t)
	key, keyPEM := newKey(t, 1)
	client := pki.Client{ID: id, Tenant: "default", Role: pki.RoleAgent}
	_, err := r.Register(t.Context(), Request{PublicKeyPEM: keyPEM, Expired: signExpired(t, r.Authority, client, key)})
	require.ErrorIs(t, err, registration.ErrInvalidNonce)
	require.ErrorContains(t, err, "the registration of instance "+id+" was lost")
}

// replacedMeanwhile are instances whose next registration finds that the key was replaced since the
// instance was read.
type replacedMeanwhile struct {
	Instances
	keyPEM string
}

func (r replacedMeanwhile) Register(ctx context.Context, id string, next func(*instance.Registration) (instance.Registration, error)) error {
	return r.Instances.Register(ctx, id, func(present *instance.Registration) (instance.Registration, error) {
		replaced := *present
		replaced.PublicKeyPEM = r.keyPEM
		return next(&replaced)
	})
}

// TestAnExpiredCertificateDoesNotBringBackItsKey: the agent has renewed its certificate, and replaced
// its key, while the server that got the expired certificate was about to renew that.
func TestAnExpiredCertificateDoesNotBringBackItsKey(t *testing.T) {
	r, id := newRegistrar(t)
	key, keyPEM := newKey(t, 1)
	_, err := r.Register(t.Context(), Request{Token: newNonce(t, id), PublicKeyPEM: keyPEM})
	require.NoError(t, err)
	before, _ := r.Instances.Get(id)
	_, nextPEM := newKey(t, 2)
	r.Instances = replacedMeanwhile{r.Instances, string(nextPEM)}
	client := pki.Client{ID: id, Tenant: "default", Role: pki.RoleAgent}
	_, err = r.Register(t.Context(), Request{PublicKeyPEM: keyPEM, Expired: signExpired(t, r.Authority, client, key)})
	require.ErrorIs(t, err, registration.ErrInvalidNonce)
	require.ErrorIs(t, err, instancestore.ErrOtherKey)
	after, _ := r.Instances.Get(id)
	assert.Equal(t, before.Registration, after.Registration)
}
