// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package authorities_test

import (
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/authorities"
	"nstance.dev/operator/pkg/server/pki"
)

func TestAHandshakeShowsThatTheCAIsReplaced(t *testing.T) {
	old, err := pki.NewAuthority("prod")
	require.NoError(t, err)
	next, err := pki.NewNextAuthority("prod")
	require.NoError(t, err)
	certificateOf := func(a *pki.Authority) *x509.Certificate {
		t.Helper()
		parsed, err := authorities.Parse(a.CertificatePEM())
		require.NoError(t, err)
		return parsed[0]
	}
	o, n := certificateOf(old), certificateOf(next)
	leaf := func(a *pki.Authority) *x509.Certificate {
		t.Helper()
		certPEM, _, err := a.IssueClient(pki.Client{ID: "prod", Tenant: "default", Role: pki.RoleOperator}, time.Hour)
		require.NoError(t, err)
		parsed, err := authorities.Parse(certPEM)
		require.NoError(t, err)
		return parsed[0]
	}
	handshake := func(issuer *x509.Certificate, accepted ...*x509.Certificate) authorities.Handshake {
		var subjects [][]byte
		for _, certificate := range accepted {
			subjects = append(subjects, certificate.RawSubject)
		}
		return authorities.NewHandshake(tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{issuer}}}, subjects)
	}
	trust := func(certificates ...*x509.Certificate) []*x509.Certificate { return certificates }
	for name, test := range map[string]struct {
		handshake authorities.Handshake
		trusted   []*x509.Certificate
		leaf      *x509.Certificate
		want      bool
	}{
		"no handshake yet":                     {authorities.Handshake{}, trust(o), leaf(old), false},
		"the server does not list authorities": {handshake(n), trust(o), leaf(old), false},
		"no replacement":                       {handshake(o, o), trust(o), leaf(old), false},
		"the server accepts another":           {handshake(o, o, n), trust(o), leaf(old), true},
		"the client trusts it too":             {handshake(o, n, o), trust(o, n), leaf(old), false},
		"the server issues with another":       {handshake(n, n, o), trust(o, n), leaf(old), true},
		"the client has its certificate":       {handshake(n, n, o), trust(n, o), leaf(next), false},
		"the server accepts one less":          {handshake(n, n), trust(n, o), leaf(next), true},
	} {
		assert.Equal(t, test.want, test.handshake.Outdated(test.trusted, test.leaf), name)
	}
	require.NoError(t, authorities.Verify(leaf(next), pki.Join(old, next).CertificatePEM()))
	require.Error(t, authorities.Verify(leaf(next), old.CertificatePEM()))
}
