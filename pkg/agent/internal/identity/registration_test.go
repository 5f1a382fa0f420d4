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

	"nstance.dev/operator/pkg/agent/internal/retry"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
	"nstance.dev/operator/pkg/server/registration"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// The agent does not soon repeat a request that the server would reject again.
func TestRejectedNoncesAreRepeatedRarely(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		delays := retry.NewDelays(maxRegistrationDelay)
		err := fmt.Errorf("register: %w", status.Error(code, "reason"))
		least, most := time.Duration(0), time.Second
		switch code {
		case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.Unimplemented:
			least, most = rejectedDelay, rejectedDelay
		}
		got := delayAfter(err, delays)
		assert.True(t, least <= got && got <= most, "after %s the delay is %s", code, got)
		for range 100 {
			assert.LessOrEqual(t, delayAfter(err, delays), max(most, 2*maxRegistrationDelay), code.String())
		}
	}
	assert.Equal(t, nonceInterval, delayAfter(errNoNonce, retry.NewDelays(maxRegistrationDelay)))
	assert.Equal(t, rejectedDelay, delayAfter(fmt.Errorf("register: %w", ErrNonce), retry.NewDelays(maxRegistrationDelay)))
	assert.Less(t, delayAfter(errors.New("disk"), retry.NewDelays(maxRegistrationDelay)), time.Second)
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
			r.wait(t.Context(), before, rejectedDelay)
			return time.Since(begin)
		}
		assert.Equal(t, rejectedDelay, waited(""))
		write("first")
		assert.Equal(t, nonceInterval, waited(""))
		assert.Equal(t, rejectedDelay, waited("first"))
		time.AfterFunc(time.Minute+time.Second, func() { write("second") })
		assert.Equal(t, time.Minute+nonceInterval, waited("first"))
	})
}

// prepared is a server that replies with a certificate in PEM.
type prepared struct {
	nstancev1.UnimplementedRegistrationServiceServer
	certificate atomic.Pointer[[]byte]
}

func (p *prepared) RegisterAgent(context.Context, *nstancev1.RegisterClientRequest) (*nstancev1.RegisterClientResponse, error) {
	return &nstancev1.RegisterClientResponse{ClientCertificatePem: *p.certificate.Load()}, nil
}

// Without its nonce an instance that has no certificate could never register.
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
	r := Registration{Address: listener.Addr().String(), Identity: id}

	issue("knc06bgm7733st2576nx5jht4ecjx")
	_, err = r.Once(t.Context())
	require.ErrorContains(t, err, "not \"knc06bgm7733st2576nx5jht4ecjw\"")
	left, err := id.Nonce()
	require.NoError(t, err)
	assert.Equal(t, token, left)

	issue(instanceID)
	_, err = r.Once(t.Context())
	require.NoError(t, err)
	left, err = id.Nonce()
	require.NoError(t, err)
	assert.Empty(t, left)
	certificate, err := id.Certificate()
	require.NoError(t, err)
	assert.NotNil(t, certificate)
}
