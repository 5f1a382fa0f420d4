// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"

	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/pkitest"
)

// listen serves TLS for a host until the test is done, and returns the address and the
// common names of the clients that connected.
func listen(t *testing.T, authority *pki.Authority, version uint16, host string) (string, <-chan string) {
	t.Helper()
	config := pki.NewServing(authority, pki.Names{Hosts: []string{host}}).MutualConfig()
	config.MinVersion, config.MaxVersion = version, version
	return pkitest.Listen(t, config)
}

func handshake(t *testing.T, i *Identity, address string) error {
	t.Helper()
	return handshakeWith(t, i.Credentials("test")("a").Clone(), address)
}

func handshakeWith(t *testing.T, client credentials.TransportCredentials, address string) error {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, _, err = client.ClientHandshake(ctx, address, conn)
	return err
}

func TestEachHandshakeUsesTheCurrentIdentity(t *testing.T) {
	authority := pkitest.NewAuthority(t)
	address, clients := listen(t, authority, tls.VersionTLS13, "127.0.0.1")
	var i Identity
	if err := handshake(t, &i, address); err == nil || !strings.Contains(err.Error(), "no client certificate") {
		t.Errorf("without an identity: got error %v", err)
	}
	for _, id := range []string{"first", "second"} {
		certPEM, keyPEM := pkitest.Operator(t, authority, id, "default")
		require.NoError(t, i.Set(certPEM, keyPEM, authority.CertificatePEM()))
		require.NoError(t, handshake(t, &i, address))
		if got := <-clients; got != id {
			t.Errorf("the server saw client %q, want %q", got, id)
		}
	}
}

func TestNextHandshakeTrustsANewAuthority(t *testing.T) {
	before, after := pkitest.NewAuthority(t), pkitest.NewAuthority(t)
	address, _ := listen(t, after, tls.VersionTLS13, "127.0.0.1")
	var i Identity
	certPEM, keyPEM := pkitest.Operator(t, after, "prod", "default")
	require.NoError(t, i.Set(certPEM, keyPEM, before.CertificatePEM()))
	if err := handshake(t, &i, address); err == nil {
		t.Error("a server of an authority that is not trusted was accepted")
	}
	// During a rotation both authorities are trusted.
	both := append(before.CertificatePEM(), after.CertificatePEM()...)
	require.NoError(t, i.Set(certPEM, keyPEM, both))
	if err := handshake(t, &i, address); err != nil {
		t.Error(err)
	}
}

func TestServerCertificateMustMatchTheEndpoint(t *testing.T) {
	authority := pkitest.NewAuthority(t)
	certPEM, keyPEM := pkitest.Operator(t, authority, "prod", "default")
	var i Identity
	require.NoError(t, i.Set(certPEM, keyPEM, authority.CertificatePEM()))
	other, _ := listen(t, authority, tls.VersionTLS13, "127.0.0.2")
	if err := handshake(t, &i, other); err == nil {
		t.Error("a server with a certificate for another host was accepted")
	}
	old, _ := listen(t, authority, tls.VersionTLS12, "127.0.0.1")
	if err := handshake(t, &i, old); err == nil {
		t.Error("TLS 1.2 was accepted")
	}
}

func TestServerMustNotBeOfAnotherShard(t *testing.T) {
	authority := pkitest.NewAuthority(t)
	certPEM, keyPEM := pkitest.Operator(t, authority, "prod", "default")
	var i Identity
	require.NoError(t, i.Set(certPEM, keyPEM, authority.CertificatePEM()))
	for name, test := range map[string]struct {
		uri   *url.URL
		wrong string
	}{
		"the shard":                       {uri: identifier.ServerURI("test", "a")},
		"another shard":                   {uri: identifier.ServerURI("test", "b"), wrong: "nstance://test/b"},
		"the shard of another cluster":    {uri: identifier.ServerURI("prod", "a"), wrong: "nstance://prod/a"},
		"no shard, as of another version": {},
		"something else":                  {uri: &url.URL{Scheme: "spiffe", Host: "example.org", Path: "/b"}},
	} {
		t.Run(name, func(t *testing.T) {
			names := pki.Names{Hosts: []string{"127.0.0.1"}, URI: test.uri}
			address, _ := pkitest.Listen(t, pki.NewServing(authority, names).MutualConfig())
			for kind, client := range map[string]credentials.TransportCredentials{
				"with a certificate":    i.Credentials("test")("a"),
				"without a certificate": AnonymousCredentials(pkitest.Roots(authority), "test", "a", false),
			} {
				err := handshakeWith(t, client, address)
				if test.wrong == "" {
					assert.NoError(t, err, kind)
					continue
				}
				var wrong *shard.WrongServerError
				require.ErrorAs(t, err, &wrong, kind)
				assert.Equal(t, shard.WrongServerError{Want: "nstance://test/a", Got: test.wrong}, *wrong, kind)
			}
		})
	}
}

// A machine gets certificates for servers from the same CA, as files.
func TestAWorkloadIsNoServer(t *testing.T) {
	authority := pkitest.NewAuthority(t)
	certPEM, keyPEM := pkitest.Operator(t, authority, "prod", "default")
	var i Identity
	require.NoError(t, i.Set(certPEM, keyPEM, authority.CertificatePEM()))
	address, _ := pkitest.Listen(t, pkitest.WorkloadConfig(t, authority, "127.0.0.1"))
	require.ErrorIs(t, handshake(t, &i, address), identifier.ErrWorkload)
	require.ErrorIs(t, handshakeWith(t, AnonymousCredentials(pkitest.Roots(authority), "test", "a", false), address), identifier.ErrWorkload)
}

func TestServersWithoutANameAreRefusedIfANameIsRequired(t *testing.T) {
	authority := pkitest.NewAuthority(t)
	certPEM, keyPEM := pkitest.Operator(t, authority, "prod", "default")
	i := Identity{RequireURI: true}
	require.NoError(t, i.Set(certPEM, keyPEM, authority.CertificatePEM()))
	for _, uri := range []*url.URL{nil, identifier.ServerURI("test", "a")} {
		names := pki.Names{Hosts: []string{"127.0.0.1"}, URI: uri}
		address, _ := pkitest.Listen(t, pki.NewServing(authority, names).MutualConfig())
		for kind, client := range map[string]credentials.TransportCredentials{
			"with a certificate":    i.Credentials("test")("a"),
			"without a certificate": AnonymousCredentials(pkitest.Roots(authority), "test", "a", true),
		} {
			err := handshakeWith(t, client, address)
			if uri != nil {
				assert.NoError(t, err, kind)
				continue
			}
			var wrong *shard.WrongServerError
			require.ErrorAs(t, err, &wrong, kind)
			assert.Equal(t, shard.WrongServerError{Want: "nstance://test/a", Got: "no name"}, *wrong, kind)
		}
	}
}

func TestServerMayHaveTheNamesOfSeveralShards(t *testing.T) {
	certificate := &x509.Certificate{URIs: []*url.URL{identifier.ServerURI("test", "b"), identifier.ServerURI("test", "c")}}
	assert.NoError(t, verifyServer(certificate, "nstance://test/c", true))
	var wrong *shard.WrongServerError
	require.ErrorAs(t, verifyServer(certificate, "nstance://test/a", false), &wrong)
	assert.Equal(t, "nstance://test/b, nstance://test/c", wrong.Got)
}

func TestSetRejectsInvalidInputAndKeepsTheIdentity(t *testing.T) {
	authority := pkitest.NewAuthority(t)
	address, clients := listen(t, authority, tls.VersionTLS13, "127.0.0.1")
	certPEM, keyPEM := pkitest.Operator(t, authority, "good", "default")
	otherCertPEM, _ := pkitest.Operator(t, authority, "bad", "default")
	var i Identity
	require.NoError(t, i.Set(certPEM, keyPEM, authority.CertificatePEM()))
	for name, err := range map[string]error{
		"key of another certificate": i.Set(otherCertPEM, keyPEM, authority.CertificatePEM()),
		"no certificate":             i.Set(nil, keyPEM, authority.CertificatePEM()),
		"no CA":                      i.Set(certPEM, keyPEM, nil),
		"CA is not a certificate":    i.Set(certPEM, keyPEM, keyPEM),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		} else if strings.Contains(err.Error(), "BEGIN") {
			t.Errorf("%s: the error contains the input: %v", name, err)
		}
	}
	require.NoError(t, handshake(t, &i, address))
	if got := <-clients; got != "good" {
		t.Errorf("the server saw client %q, want that of the valid identity", got)
	}
}

// TestAHandshakeShowsThatTheCAIsReplaced: the identity is outdated until it has what the server has.
func TestAHandshakeShowsThatTheCAIsReplaced(t *testing.T) {
	old := pkitest.NewAuthority(t)
	next, err := pki.NewNextAuthority("test")
	require.NoError(t, err)
	current := pki.Join(old)
	address, _ := listen(t, current, tls.VersionTLS13, "127.0.0.1")
	var i Identity
	handshakes := 0
	i.AddHandler(func() { handshakes++ })
	set := func(authority *pki.Authority) {
		t.Helper()
		certPEM, keyPEM := pkitest.Operator(t, authority, "prod", "default")
		require.NoError(t, i.Set(certPEM, keyPEM, authority.CertificatePEM()))
	}
	set(old)
	require.NoError(t, handshake(t, &i, address))
	require.False(t, i.Outdated())
	require.Equal(t, 1, handshakes)
	for _, phase := range []*pki.Authority{pki.Join(old, next), pki.Join(next, old), next} {
		current.Set(phase)
		require.NoError(t, handshake(t, &i, address))
		require.True(t, i.Outdated())
		set(phase)
		require.False(t, i.Outdated())
	}
}
