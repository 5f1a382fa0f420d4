// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
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
	"nstance.dev/operator/pkg/server/registration"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// A rejection may pass while the nonce is valid: the agent repeats a nonce soon, then rarely.
func TestRejectedNoncesAreRepeatedMoreAndMoreRarely(t *testing.T) {
	growing := []time.Duration{15 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 4 * time.Minute, 5 * time.Minute, 5 * time.Minute}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		delays := newDelays()
		err := fmt.Errorf("register: %w", status.Error(code, "reason"))
		switch code {
		case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.Unimplemented:
			for _, want := range growing {
				assert.Equal(t, want, delays.after(err), code.String())
			}
			continue
		}
		assert.LessOrEqual(t, delays.after(err), time.Second, code.String())
		for range 100 {
			assert.LessOrEqual(t, delays.after(err), 2*maxRegistrationDelay, code.String())
		}
	}
	delays := newDelays()
	assert.Equal(t, nonceInterval, delays.after(errNoNonce))
	assert.Equal(t, firstRejectedDelay, delays.after(fmt.Errorf("register: %w", ErrNonce)))
	assert.Less(t, delays.after(errors.New("disk")), time.Second)
}

// The delay ends when there is another nonce.
func TestAnotherNonceEndsTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder := t.TempDir()
		id, err := Open(folder, 0o600, "knc06bgm7733st2576nx5jht4ecjw")
		require.NoError(t, err)
		write := func(nonce string) {
			t.Helper()
			require.NoError(t, os.WriteFile(filepath.Join(folder, "nonce.jwt"), []byte(nonce), 0o600))
		}
		r := Registration{Identity: id}
		waited := func(before string) time.Duration {
			begin := time.Now()
			r.wait(t.Context(), before, maxRejectedDelay)
			return time.Since(begin)
		}
		assert.Equal(t, maxRejectedDelay, waited(""))
		write("first")
		assert.Equal(t, nonceInterval, waited(""))
		assert.Equal(t, maxRejectedDelay, waited("first"))
		time.AfterFunc(time.Minute+time.Second, func() { write("second") })
		assert.Equal(t, time.Minute+nonceInterval, waited("first"))
	})
}

// prepared is a server that replies with a certificate in PEM.
type prepared struct {
	nstancev1.UnimplementedRegistrationServiceServer
	certificate atomic.Pointer[[]byte]
	request     atomic.Pointer[nstancev1.RegisterClientRequest]
}

func (p *prepared) RegisterAgent(_ context.Context, request *nstancev1.RegisterClientRequest) (*nstancev1.RegisterClientResponse, error) {
	p.request.Store(request)
	return &nstancev1.RegisterClientResponse{ClientCertificatePem: *p.certificate.Load()}, nil
}

// Without its nonce an instance that has no certificate could never register. With the nonce it
// sends the signed identity of its machine, if there is one.
func TestTheNonceStaysUntilThereIsACertificate(t *testing.T) {
	authority := pkitest.NewAuthority(t)
	reply := &prepared{}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(pki.NewServing(authority, pki.Names{Hosts: []string{"127.0.0.1"}}).Config())))
	nstancev1.RegisterRegistrationServiceServer(server, reply)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	folder := t.TempDir()
	id, err := Open(folder, 0o600, instanceID)
	require.NoError(t, err)
	key, err := id.Key()
	require.NoError(t, err)
	token, err := registration.NewNonceSigner(key).Agent(registration.AgentNonce{InstanceID: instanceID, ClusterID: "test", Tenant: "default", Shard: "a"})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "ca.crt"), authority.CertificatePEM(), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "nonce.jwt"), []byte(token), 0o600))
	issue := func(to string) {
		t.Helper()
		leaf, err := authority.SignClient(pki.Client{ID: to, Tenant: "default", Role: pki.RoleAgent}, key.Public().(ed25519.PublicKey), time.Hour)
		require.NoError(t, err)
		certPEM := pki.EncodeCertificate(leaf)
		reply.certificate.Store(&certPEM)
	}
	var audience string
	identityErr := errors.New("404")
	r := Registration{
		Address: listener.Addr().String(), Identity: id,
		SignedIdentity: func(_ context.Context, requested string) ([]byte, error) {
			audience = requested
			return []byte("signed"), identityErr
		},
	}

	issue("knc06bgm7733st2576nx5jht4ecjx")
	_, err = r.Once(t.Context())
	require.ErrorContains(t, err, "not \"knc06bgm7733st2576nx5jht4ecjw\"")
	left, err := id.Nonce()
	require.NoError(t, err)
	assert.Equal(t, token, left)
	// The server decides whether it registers a machine without an identity.
	assert.Empty(t, reply.request.Load().GetMachineIdentity())

	identityErr = nil
	issue(instanceID)
	_, err = r.Once(t.Context())
	require.NoError(t, err)
	left, err = id.Nonce()
	require.NoError(t, err)
	assert.Empty(t, left)
	certificate, err := id.Certificate()
	require.NoError(t, err)
	assert.NotNil(t, certificate)
	assert.Equal(t, "signed", string(reply.request.Load().GetMachineIdentity()))
	assert.Equal(t, keys.Audience(token, reply.request.Load().GetPublicKeyPem()), audience)
}
