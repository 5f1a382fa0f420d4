// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"nstance.dev/operator/pkg/server/auditlog"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/pki/clusterkeys"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage"
)

// opened returns the secrets of the storage with the encryption key whose bytes are all b. The
// cluster has 7.
func (c *cluster) opened(b byte) secrets.Store {
	c.t.Helper()
	opened, err := secrets.New(c.storage, bytes.Repeat([]byte{b}, 32))
	require.NoError(c.t, err)
	return opened
}

// issuer creates a nonce issuer, for an hour, whose encryption key is 9.
func (c *cluster) issuer(issuer pki.NonceIssuer) (*x509.Certificate, ed25519.PrivateKey) {
	c.t.Helper()
	certificate, key, err := registration.NewNonceIssuer(c.keys.Authority, issuer, time.Hour)
	require.NoError(c.t, err)
	_, err = registration.AddNonceIssuer(c.t.Context(), c.storage, c.opened(9), c.keys.Authority, certificate, key)
	require.NoError(c.t, err)
	return certificate, key
}

func (c *cluster) signer(name string) *registration.NonceSigner {
	c.t.Helper()
	signer, err := registration.OpenNonceIssuer(c.t.Context(), c.storage, c.opened(9), name)
	require.NoError(c.t, err)
	return signer
}

func (c *cluster) verifier() *registration.NonceVerifier {
	return &registration.NonceVerifier{Key: c.keys.Nonce.Public().(ed25519.PublicKey), Authority: c.keys.Authority, Store: c.storage}
}

// forge signs claims with any key, and any certificates in the header.
func (c *cluster) forge(kind, tenant string, key ed25519.PrivateKey, header any) string {
	c.t.Helper()
	now := time.Now()
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{
		"kind": kind, "sub": clusterID, "cluster_id": clusterID, "tenant": tenant, "shard": "a",
		"iat": now.Unix(), "exp": now.Add(time.Minute).Unix(),
	})
	if header != nil {
		token.Header["x5c"] = header
	}
	signed, err := token.SignedString(key)
	require.NoError(c.t, err)
	return signed
}

func inHeader(certificates ...*x509.Certificate) []string {
	var chain []string
	for _, certificate := range certificates {
		chain = append(chain, base64.StdEncoding.EncodeToString(certificate.Raw))
	}
	return chain
}

var operatorsOfA = pki.NonceIssuer{Name: "ci", Tenants: []string{"a", "b"}, Roles: []string{pki.RoleOperator}}

// A nonce issuer has what it needs to let operators of its tenants register, and neither the key
// of the CA nor the nonce key.
func TestNonceIssuerHasNoKeyOfTheCluster(t *testing.T) {
	c := newCluster(t)
	certificate, _ := c.issuer(operatorsOfA)
	for _, name := range []string{storage.AuthoritySecret, storage.NonceSecret} {
		_, err := c.opened(9).Get(t.Context(), name)
		require.ErrorContains(t, err, "encrypted with none of the 1 keys", "the issuer reads %s", name)
	}
	_, err := c.opened(7).Get(t.Context(), storage.NonceIssuerSecret("ci", certificate.SerialNumber.Text(16)))
	require.ErrorContains(t, err, "encrypted with none of the 1 keys", "the cluster's key opens the key of the issuer")

	elector, _ := c.lead("one")
	s := c.serve(c.registrar(elector, c.storage))
	token, err := c.signer("ci").Operator(registration.OperatorNonce{ClusterID: clusterID, Tenant: "a", Lifetime: 30 * time.Minute})
	require.NoError(t, err)
	key, publicKeyPEM := newKey(t)
	answer, err := s.register(token, publicKeyPEM)
	require.NoError(t, err)
	s.wantCertificate(answer.ClientCertificatePem, "a", key)
	infos, err := c.storage.List(t.Context(), "audit-log/cluster/")
	require.NoError(t, err)
	require.Len(t, infos, 1)
	object, err := c.storage.Get(t.Context(), infos[0].Key)
	require.NoError(t, err)
	var entry auditlog.Entry
	require.NoError(t, json.Unmarshal(object.Data, &entry))
	assert.Equal(t, "registration, nonce issuer ci", entry.Reason)

	_, otherPEM := newKey(t)
	_, err = s.register(token, otherPEM)
	wantCode(t, err, codes.Unauthenticated)
	_, err = s.register(c.nonce("a"), otherPEM)
	require.NoError(t, err, "a nonce of the cluster's key")

	_, err = registration.RevokeNonceIssuer(t.Context(), c.storage, "ci", "")
	require.NoError(t, err)
	_, err = s.register(token, publicKeyPEM)
	wantCode(t, err, codes.Unauthenticated)
	assert.ErrorContains(t, err, "was revoked")

	// A server of an earlier version refuses the nonce: it knows one key.
	_, err = registration.ParseNonce(token, c.keys.Nonce.Public().(ed25519.PublicKey))
	require.ErrorIs(t, err, registration.ErrInvalidNonce)
}

func TestNonceIssuerSignsWithinItsScope(t *testing.T) {
	c := newCluster(t)
	c.issuer(operatorsOfA)
	c.issuer(pki.NonceIssuer{Name: "all", Tenants: []string{pki.AllTenants}, Roles: []string{pki.RoleOperator, pki.RoleAgent}})
	operator := func(tenant string, lifetime time.Duration) registration.OperatorNonce {
		return registration.OperatorNonce{ClusterID: clusterID, Tenant: tenant, Lifetime: lifetime}
	}
	agent := registration.AgentNonce{InstanceID: "i", ClusterID: clusterID, Tenant: "a", Shard: "a", RegistrationTimeout: time.Minute}
	_, err := c.signer("ci").Operator(operator("c", time.Minute))
	require.ErrorContains(t, err, `nonce issuer "ci" may not make nonces of tenant "c"`)
	_, err = c.signer("ci").Agent(agent)
	require.ErrorContains(t, err, `nonce issuer "ci" may not make nonces for role "agent"`)
	_, err = c.signer("ci").Operator(operator("b", 2*time.Hour))
	require.ErrorContains(t, err, `the certificate of nonce issuer "ci" is until`)
	for _, sign := range []func() (string, error){
		func() (string, error) { return c.signer("ci").Operator(operator("b", time.Minute)) },
		func() (string, error) { return c.signer("all").Operator(operator("c", time.Minute)) },
		func() (string, error) { return c.signer("all").Agent(agent) },
	} {
		token, err := sign()
		require.NoError(t, err)
		claims, err := c.verifier().Verify(t.Context(), token)
		require.NoError(t, err)
		assert.Contains(t, []string{"ci", "all"}, claims.Issuer)
	}
}

// Servers check what a nonce issuer may sign: a stolen key signs anything.
func TestForgedNoncesOfIssuersAreRefused(t *testing.T) {
	c := newCluster(t)
	certificate, key := c.issuer(operatorsOfA)
	unrecorded, unrecordedKey, err := registration.NewNonceIssuer(c.keys.Authority, operatorsOfA, time.Hour)
	require.NoError(t, err)
	foreign, foreignKey := newCluster(t).issuer(operatorsOfA)
	client := c.issue(pki.Client{ID: clusterID, Tenant: "a", Role: pki.RoleOperator}, time.Hour)
	clientCertificate := parseCertificate(t, client.certPEM)
	workload, err := c.keys.Authority.SignWorkload(pki.Workload{CommonName: "ci", Organizations: []string{"a"}, TTL: time.Hour}, key.Public(), nil)
	require.NoError(t, err)
	authority := parseCertificate(t, c.keys.Authority.CertificatePEM())
	verify := func(token string) error {
		_, err := c.verifier().Verify(t.Context(), token)
		return err
	}
	require.NoError(t, verify(c.forge("operator", "a", key, inHeader(certificate))))
	for _, tc := range []struct{ name, token, want string }{
		{"another tenant", c.forge("operator", "c", key, inHeader(certificate)), `may not make nonces of tenant "c"`},
		{"all tenants", c.forge("operator", "*", key, inHeader(certificate)), `may not make nonces of tenant "*"`},
		{"an agent", c.forge("agent", "a", key, inHeader(certificate)), `may not make nonces for role "agent"`},
		{"another key", c.forge("operator", "a", unrecordedKey, inHeader(certificate)), "signature is invalid"},
		{"the issuer's key without its certificate", c.forge("operator", "a", key, nil), "signature is invalid"},
		{"a certificate without a record", c.forge("operator", "a", unrecordedKey, inHeader(unrecorded)), "object nonce-issuer/ci.json does not have the certificate"},
		{"another cluster", c.forge("operator", "a", foreignKey, inHeader(foreign)), "verify the certificate of the nonce issuer"},
		{"the certificate of an operator", c.forge("operator", "a", client.key, inHeader(clientCertificate)), "is not one of a nonce issuer: has no role"},
		{"the certificate of a workload", c.forge("operator", "a", key, inHeader(workload)), "is not one of a nonce issuer: has no role"},
		{"the certificate of the authority", c.forge("operator", "a", key, inHeader(authority)), "is not one of a nonce issuer"},
		{"two certificates", c.forge("operator", "a", key, inHeader(certificate, authority)), "a list with one certificate"},
		{"no certificate", c.forge("operator", "a", key, []string{}), "a list with one certificate"},
		{"no list", c.forge("operator", "a", key, inHeader(certificate)[0]), "a list with one certificate"},
		{"no text", c.forge("operator", "a", key, []any{1}), "is not text"},
		{"no base64", c.forge("operator", "a", key, []string{"-"}), "is not base64"},
		{"no certificate in base64", c.forge("operator", "a", key, []string{"AAAA"}), "parse the certificate"},
		{"nothing", c.forge("operator", "a", key, []any{nil}), "is not text"},
	} {
		err := verify(tc.token)
		require.ErrorIs(t, err, registration.ErrInvalidNonce, tc.name)
		assert.ErrorContains(t, err, tc.want, tc.name)
	}
	// The certificate of an issuer is of no use as one of a client.
	_, err = certificate.Verify(x509.VerifyOptions{Roots: c.clientConfig().RootCAs, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	require.ErrorContains(t, err, "incompatible key usage")
	_, err = certificate.Verify(x509.VerifyOptions{Roots: c.clientConfig().RootCAs})
	require.ErrorContains(t, err, "incompatible key usage", "as a server")
}

// While the key of an issuer is replaced, both are accepted, until the old one is revoked.
func TestNewKeyOfANonceIssuer(t *testing.T) {
	c := newCluster(t)
	nonce := func() string {
		token, err := c.signer("ci").Operator(registration.OperatorNonce{ClusterID: clusterID, Tenant: "a", Lifetime: time.Minute})
		require.NoError(t, err)
		return token
	}
	verify := func(token string) error {
		_, err := c.verifier().Verify(t.Context(), token)
		return err
	}
	first, firstKey := c.issuer(operatorsOfA)
	old := nonce()
	second, secondKey := c.issuer(operatorsOfA)
	assert.NotEqual(t, firstKey, secondKey)
	require.NoError(t, verify(old))
	require.NoError(t, verify(nonce()))
	revoked, err := registration.RevokeNonceIssuer(t.Context(), c.storage, "ci", first.SerialNumber.Text(16))
	require.NoError(t, err)
	assert.Equal(t, []string{first.SerialNumber.Text(16)}, revoked)
	require.ErrorContains(t, verify(old), "was revoked at")
	require.NoError(t, verify(nonce()))
	_, err = registration.RevokeNonceIssuer(t.Context(), c.storage, "ci", "ab")
	require.ErrorContains(t, err, "nonce issuer ci has no such certificate")
	_, err = registration.RevokeNonceIssuer(t.Context(), c.storage, "ci", second.SerialNumber.Text(16))
	require.NoError(t, err)
	_, err = registration.OpenNonceIssuer(t.Context(), c.storage, c.opened(9), "ci")
	require.ErrorContains(t, err, "nonce issuer ci has no certificate that is accepted")
	_, err = registration.OpenNonceIssuer(t.Context(), c.storage, c.opened(9), "other")
	require.ErrorContains(t, err, "object nonce-issuer/other.json is missing")
}

// While the CA is replaced, the issuers of both are accepted.
func TestNonceIssuerOfAReplacedCA(t *testing.T) {
	c := newCluster(t)
	load := func() {
		loaded, err := clusterkeys.Load(t.Context(), c.storage, c.opened(7))
		require.NoError(t, err)
		c.keys = loaded
	}
	verify := func(certificate *x509.Certificate, key ed25519.PrivateKey) error {
		_, err := c.verifier().Verify(t.Context(), c.forge("operator", "a", key, inHeader(certificate)))
		return err
	}
	old, oldKey := c.issuer(operatorsOfA)
	require.NoError(t, clusterkeys.Begin(t.Context(), c.storage, c.opened(7)))
	load()
	require.NoError(t, verify(old, oldKey))
	require.NoError(t, clusterkeys.Switch(t.Context(), c.storage))
	load()
	next, nextKey := c.issuer(operatorsOfA)
	require.NoError(t, verify(old, oldKey))
	require.NoError(t, verify(next, nextKey))
	require.NoError(t, clusterkeys.Finish(t.Context(), c.storage, c.opened(7)))
	load()
	require.ErrorContains(t, verify(old, oldKey), "verify the certificate of the nonce issuer")
	require.NoError(t, verify(next, nextKey))
}

func TestCertificateOfANonceIssuerExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		first, key := c.issuer(operatorsOfA)
		time.Sleep(time.Hour + time.Second)
		_, err := c.verifier().Verify(t.Context(), c.forge("operator", "a", key, inHeader(first)))
		require.ErrorContains(t, err, "certificate has expired")
		// The next certificate removes the first from the record.
		certificate, key, err := registration.NewNonceIssuer(c.keys.Authority, operatorsOfA, time.Hour)
		require.NoError(t, err)
		expired, err := registration.AddNonceIssuer(t.Context(), c.storage, c.opened(9), c.keys.Authority, certificate, key)
		require.NoError(t, err)
		assert.Equal(t, []string{first.SerialNumber.Text(16)}, expired)
		record, err := registration.ReadNonceIssuer(t.Context(), c.storage, "ci")
		require.NoError(t, err)
		require.Len(t, record.Certificates, 1)
		assert.Equal(t, certificate.SerialNumber.Text(16), record.Certificates[0].Serial)
	})
}

func TestNonceIssuersThatCannotBe(t *testing.T) {
	c := newCluster(t)
	roles := []string{pki.RoleOperator}
	for want, issuer := range map[string]pki.NonceIssuer{
		"name:":               {Tenants: []string{"a"}, Roles: roles},
		"has 0 tenants":       {Name: "ci", Roles: roles},
		"tenant:":             {Name: "ci", Tenants: []string{"a", pki.AllTenants}, Roles: roles},
		"has no role":         {Name: "ci", Tenants: []string{"a"}},
		`role "server" is`:    {Name: "ci", Tenants: []string{"a"}, Roles: []string{"server"}},
		"has 33 tenants":      {Name: "ci", Tenants: make([]string, 33), Roles: roles},
		"tenant: must not be": {Name: "ci", Tenants: []string{""}, Roles: roles},
	} {
		_, _, err := registration.NewNonceIssuer(c.keys.Authority, issuer, time.Hour)
		assert.ErrorContains(t, err, want)
	}
	for _, lifetime := range []time.Duration{0, pki.MaxNonceIssuerLifetime + 1} {
		_, _, err := registration.NewNonceIssuer(c.keys.Authority, operatorsOfA, lifetime)
		assert.ErrorContains(t, err, "must be greater than zero and at most 8760h0m0s")
	}
}
