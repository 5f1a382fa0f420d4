// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"context"
	"crypto/ed25519"
	"io/fs"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// certificateFor returns a certificate of the instance for a key.
func certificateFor(t *testing.T, authority *pki.Authority, key ed25519.PublicKey) []byte {
	t.Helper()
	leaf, err := authority.SignClient(pki.Client{ID: instanceID, Tenant: "default", Role: pki.RoleAgent}, key, time.Hour)
	require.NoError(t, err)
	return pki.EncodeCertificate(leaf)
}

// usable returns the key of the certificate, after a start of the agent in the folder.
func usable(t *testing.T, folder string) ed25519.PublicKey {
	t.Helper()
	certificate, err := open(t, folder).Certificate()
	require.NoError(t, err)
	require.NotNil(t, certificate)
	key := certificate.PrivateKey.(ed25519.PrivateKey).Public().(ed25519.PublicKey)
	assert.True(t, key.Equal(certificate.Leaf.PublicKey), "the certificate has another key")
	return key
}

// The agent may be killed between any two writes. It always has a certificate with its key, and
// asks for the next certificate with the same next key until it has stored it.
func TestTheKeyIsReplacedWithTheCertificate(t *testing.T) {
	authority := pkitest.NewAuthority(t)
	i := newIdentity(t, authority)
	first := public(t, i)
	require.NoError(t, i.SetCertificate(certificateFor(t, authority, first)))
	private, err := i.NextKey()
	require.NoError(t, err)
	next := private.Public().(ed25519.PublicKey)
	require.False(t, next.Equal(first))
	assert.True(t, first.Equal(usable(t, i.folder)), "before the response")
	again, err := open(t, i.folder).NextKey()
	require.NoError(t, err)
	assert.True(t, private.Equal(again), "the next key after a start")
	// A server may have renewed the certificate for the present key.
	require.NoError(t, i.SetCertificate(certificateFor(t, authority, first)))
	assert.True(t, first.Equal(usable(t, i.folder)), "renewed for the present key")

	// Only the certificate is written.
	require.NoError(t, os.WriteFile(i.path(certificateFile), certificateFor(t, authority, next), 0o600))
	certificate, err := i.Certificate()
	require.NoError(t, err)
	assert.True(t, private.Equal(certificate.PrivateKey))
	keyPEM, err := os.ReadFile(i.path(nextKeyFile))
	require.NoError(t, err)
	assert.True(t, next.Equal(usable(t, i.folder)), "after the certificate")
	assert.True(t, next.Equal(public(t, i)), "the key of the instance")
	stored, err := os.ReadFile(i.path(publicKeyFile))
	require.NoError(t, err)
	parsed, err := keys.ParsePublic(stored)
	require.NoError(t, err)
	assert.True(t, next.Equal(parsed), "the public key")
	_, err = os.Stat(i.path(nextKeyFile))
	require.ErrorIs(t, err, fs.ErrNotExist)
	present, err := os.ReadFile(i.path(keyFile))
	require.NoError(t, err)
	assert.Equal(t, string(keyPEM), string(present))

	// All in one call, and for the next time with another key.
	private, err = i.NextKey()
	require.NoError(t, err)
	third := private.Public().(ed25519.PublicKey)
	assert.False(t, third.Equal(next))
	require.NoError(t, i.SetCertificate(certificateFor(t, authority, third)))
	assert.True(t, third.Equal(usable(t, i.folder)))
	assert.ErrorContains(t, i.SetCertificate(certificateFor(t, authority, next)), "not for the key")
}

// renewing signs certificates for keys, and rejects keys for which reject returns true.
type renewing struct {
	nstancev1.UnimplementedAgentServiceServer

	t         *testing.T
	authority *pki.Authority
	reject    func(count int) bool

	mu   sync.Mutex
	keys []string
}

func (s *renewing) RenewCertificate(_ context.Context, request *nstancev1.RenewCertificateRequest) (*nstancev1.RenewCertificateResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = append(s.keys, string(request.GetPublicKeyPem()))
	assert.NotEmpty(s.t, request.GetCertificateRequest(), "the agent proves that it has the key")
	if s.reject(len(s.keys)) {
		return nil, status.Error(codes.InvalidArgument, "it is not the key of the registration")
	}
	key, err := keys.ParsePublic(request.GetPublicKeyPem())
	if err != nil {
		return nil, err
	}
	return &nstancev1.RenewCertificateResponse{ClientCertificatePem: certificateFor(s.t, s.authority, key)}, nil
}

// Servers of older versions renew certificates for the key of the registration only.
func TestARenewalIsForAnotherKeyIfTheServerAcceptsIt(t *testing.T) {
	for name, rejects := range map[string]bool{"present": false, "older": true} {
		t.Run(name, func(t *testing.T) {
			authority := pkitest.NewAuthority(t)
			service := &renewing{t: t, authority: authority, reject: func(count int) bool { return rejects && count == 1 }}
			server := grpc.NewServer(grpc.Creds(credentials.NewTLS(
				pki.NewServing(authority, pki.Names{Hosts: []string{"127.0.0.1"}}).MutualConfig())))
			nstancev1.RegisterAgentServiceServer(server, service)
			listener := serve(t, server)
			i, _ := newDue(t, authority)
			first := public(t, i)
			conn, err := NewConnection(listener.Addr().String(), i.Credentials)
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			certificate, err := i.Certificate()
			require.NoError(t, err)
			require.NoError(t, (&Renewal{Identity: i, Connection: conn}).renew(t.Context(), certificate))
			renewed, err := i.Certificate()
			require.NoError(t, err)
			assert.NotEqual(t, certificate.Leaf.SerialNumber, renewed.Leaf.SerialNumber)
			assert.Equal(t, rejects, first.Equal(renewed.Leaf.PublicKey))
			assert.Equal(t, rejects, first.Equal(public(t, i)))
		})
	}
}
