// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// serve runs a server until the end of the test.
func serve(t *testing.T, server *grpc.Server) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener
}

// newDue returns an identity whose certificate is due for renewal.
func newDue(t *testing.T, authority *pki.Authority) (*Identity, *x509.Certificate) {
	t.Helper()
	folder := t.TempDir()
	id, err := Open(folder, 0o600, instanceID)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "ca.crt"), authority.CertificatePEM(), 0o600))
	key, err := id.Key()
	require.NoError(t, err)
	leaf, err := authority.SignClient(pki.Client{ID: instanceID, Tenant: "default", Role: pki.RoleAgent}, key.Public().(ed25519.PublicKey), time.Hour)
	require.NoError(t, err)
	require.NoError(t, id.SetCertificate(pki.EncodeCertificate(leaf)))
	issued := time.Now().Add(-10 * time.Hour)
	require.NoError(t, os.Chtimes(filepath.Join(folder, "identity.crt"), issued, issued))
	return id, leaf
}

// A server of another implementation may not have the method. The agent keeps its
// certificate, logs this once, and does not soon repeat the call.
func TestServerThatDoesNotRenewIsAskedRarely(t *testing.T) {
	authority := pkitest.NewAuthority(t)
	var calls atomic.Int64
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(pki.NewServing(authority, pki.Names{Hosts: []string{"127.0.0.1"}}).MutualConfig())),
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
			calls.Add(1)
			return status.Error(codes.Unimplemented, "unknown method")
		}))
	listener := serve(t, server)
	id, leaf := newDue(t, authority)

	conn, err := NewConnection(listener.Addr().String(), id.Credentials)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	log := logger.GetSink().(ktesting.Underlier).GetBuffer()
	stop := runtest.Start(t, func(ctx context.Context) {
		(&Renewal{Identity: id, Connection: conn}).Run(klog.NewContext(ctx, logger))
	})
	runtest.Eventually(t, "it is logged", func() bool { return strings.Contains(log.String(), "does not renew certificates") })
	stop()
	assert.EqualValues(t, 1, calls.Load())
	assert.Equal(t, 1, strings.Count(log.String(), "does not renew certificates"))
	certificate, err := id.Certificate()
	require.NoError(t, err)
	assert.Equal(t, leaf.SerialNumber, certificate.Leaf.SerialNumber)
}

func TestCertificateIsDueWhenTwoThirdsAreOver(t *testing.T) {
	issued := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	expires := issued.Add(30 * time.Hour)
	assert.Equal(t, 20*time.Hour, due(issued, expires, 0).Sub(issued).Round(time.Second))
	assert.Equal(t, 19*time.Hour, due(issued, expires, 1).Sub(issued).Round(time.Second))
	// The clock was set back after the certificate was issued, or the certificate was
	// copied.
	assert.False(t, due(expires.Add(time.Hour), expires, 0.5).After(expires.Add(time.Hour)))
}

// signsForAnother signs certificates of another instance, which an agent does not store.
type signsForAnother struct {
	nstancev1.UnimplementedAgentServiceServer

	authority *pki.Authority
}

func (s *signsForAnother) RenewCertificate(_ context.Context, request *nstancev1.RenewCertificateRequest) (*nstancev1.RenewCertificateResponse, error) {
	key, err := keys.ParsePublic(request.GetPublicKeyPem())
	if err != nil {
		return nil, err
	}
	leaf, err := s.authority.SignClient(pki.Client{ID: "knc06bgm7733st2576nx5jht4ecjx", Tenant: "default", Role: pki.RoleAgent}, key, time.Hour)
	if err != nil {
		return nil, err
	}
	return &nstancev1.RenewCertificateResponse{ClientCertificatePem: pki.EncodeCertificate(leaf)}, nil
}

// An agent that cannot store the certificate it gets has not renewed it: it logs the error,
// and does not ask again at once.
func TestCertificateThatIsNotStored(t *testing.T) {
	authority := pkitest.NewAuthority(t)
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(
		pki.NewServing(authority, pki.Names{Hosts: []string{"127.0.0.1"}}).MutualConfig())))
	nstancev1.RegisterAgentServiceServer(server, &signsForAnother{authority: authority})
	listener := serve(t, server)
	id, leaf := newDue(t, authority)
	conn, err := NewConnection(listener.Addr().String(), id.Credentials)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	log := logger.GetSink().(ktesting.Underlier).GetBuffer()
	stop := runtest.Start(t, func(ctx context.Context) {
		(&Renewal{Identity: id, Connection: conn}).Run(klog.NewContext(ctx, logger))
	})
	runtest.Eventually(t, "it is logged", func() bool {
		return strings.Contains(log.String(), "Certificate renewal failed") || strings.Contains(log.String(), "Renewed the certificate")
	})
	stop()
	assert.NotContains(t, log.String(), "Renewed the certificate")
	certificate, err := id.Certificate()
	require.NoError(t, err)
	assert.Equal(t, leaf.SerialNumber, certificate.Leaf.SerialNumber)
}
