// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"context"
	"crypto/tls"
	"net"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
)

// handshakes returns the errors of a handshake with and without the certificate of the instance.
func handshakes(t *testing.T, i *Identity, server *tls.Config) map[string]error {
	t.Helper()
	errs := map[string]error{}
	for kind, client := range map[string]credentials.TransportCredentials{"mutual": i.Credentials(), "anonymous": i.AnonymousCredentials()} {
		config := server.Clone()
		config.NextProtos = []string{"h2"}
		address, _ := pkitest.Listen(t, config)
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		_, _, errs[kind] = client.ClientHandshake(ctx, address, conn)
	}
	return errs
}

// A server sends files and reads the nonce. Other machines have certificates of the same CA.
func TestOnlyTheServersOfTheShardAreAccepted(t *testing.T) {
	authority := pkitest.NewAuthority(t)
	i := newIdentity(t, authority)
	require.NoError(t, i.SetCertificate(sign(t, authority, i, instanceID, time.Hour)))
	own := identifier.ServerURI("test", "a")
	for name, test := range map[string]struct {
		required string
		uri      *url.URL
		accepted bool
	}{
		"the shard":               {own.String(), own, true},
		"another shard":           {own.String(), identifier.ServerURI("test", "b"), false},
		"another cluster":         {own.String(), identifier.ServerURI("prod", "a"), false},
		"no name":                 {own.String(), nil, false},
		"no name is required":     {"", nil, true},
		"nor the name of a shard": {"", own, true},
	} {
		i.ServerURI = test.required
		names := pki.Names{Hosts: []string{"127.0.0.1"}, URI: test.uri}
		for kind, err := range handshakes(t, i, pki.NewServing(authority, names).MutualConfig()) {
			if test.accepted {
				assert.NoError(t, err, "%s, %s", name, kind)
				continue
			}
			assert.ErrorIs(t, err, errOtherServer, "%s, %s", name, kind)
		}
	}
	i.ServerURI = ""
	for kind, err := range handshakes(t, i, pkitest.WorkloadConfig(t, authority, "127.0.0.1")) {
		assert.ErrorIs(t, err, identifier.ErrWorkload, kind)
	}
}
