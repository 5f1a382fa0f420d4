// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"math/big"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/registration"
	"nstance.dev/operator/pkg/server/storage"
)

var operatorOfA = pki.Client{ID: clusterID, Tenant: "a", Role: pki.RoleOperator}

func TestCheck(t *testing.T) {
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	certificate := func(number int64) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(number), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour)}
	}
	// 10, 11 and 12 are a, b and c.
	record := registration.Record{CertSerial: "b", PreviousSerial: "a", PreviousUntil: now.Add(time.Minute)}
	revoked := record
	revoked.RevokedSerials = []string{"a", "b"}
	unregistered := registration.Record{RevokedSerials: []string{"a"}, RevokedAt: now}
	all := registration.Record{RevokedAt: now, RevokedBefore: now}
	var old registration.Record
	require.NoError(t, json.Unmarshal([]byte(`{"client_id":"prod","tenant":"a","public_key_pem":"","cert_serial":"b",
		"registered_at":"2026-06-01T10:00:00Z","expires_at":"2026-06-01T13:00:00Z"}`), &old))
	for name, tc := range map[string]struct {
		record *registration.Record
		serial int64
		at     time.Time
		want   error
	}{
		"without a registration":                      {nil, 10, now, nil},
		"when it expires":                             {nil, 10, now.Add(time.Hour), nil},
		"expired without a registration":              {nil, 10, now.Add(time.Hour + 1), registration.ErrExpired},
		"expired":                                     {&record, 11, now.Add(time.Hour + 1), registration.ErrExpired},
		"current":                                     {&record, 11, now, nil},
		"current after the grace period":              {&record, 11, now.Add(time.Minute), nil},
		"previous within the grace period":            {&record, 10, now.Add(time.Minute - 1), nil},
		"previous after the grace period":             {&record, 10, now.Add(time.Minute), registration.ErrReplaced},
		"neither":                                     {&record, 12, now, registration.ErrReplaced},
		"current, revoked":                            {&revoked, 11, now, registration.ErrRevoked},
		"previous, revoked":                           {&revoked, 10, now, registration.ErrRevoked},
		"neither, when the current is revoked":        {&revoked, 12, now, registration.ErrReplaced},
		"revoked without a registration":              {&unregistered, 10, now, registration.ErrRevoked},
		"another without a registration":              {&unregistered, 11, now, nil},
		"issued before all were revoked":              {&all, 10, now, registration.ErrRevoked},
		"current of a record without the new fields":  {&old, 11, now, nil},
		"replaced in a record without the new fields": {&old, 10, now, registration.ErrReplaced},
	} {
		t.Run(name, func(t *testing.T) {
			err := tc.record.Check(certificate(tc.serial), tc.at)
			if tc.want == nil {
				assert.NoError(t, err)
				return
			}
			assert.ErrorIs(t, err, tc.want)
			assert.ErrorContains(t, err, "register with a new nonce")
		})
	}
	later := certificate(10)
	later.NotBefore = now
	assert.NoError(t, all.Check(later, now), "issued after all were revoked")
}

// TestRenewAgain renews with the same certificate as long as the responses are lost.
func TestRenewAgain(t *testing.T) {
	c := newCluster(t)
	elector, _ := c.lead("one")
	s := c.serve(c.registrar(elector, c.storage))
	key, publicKeyPEM := newKey(t)
	registered, err := s.register(c.nonce("a"), publicKeyPEM)
	require.NoError(t, err)
	present := parseCertificate(t, registered.ClientCertificatePem)
	var lost []byte
	for range 3 {
		answer, err := s.renew(identity{registered.ClientCertificatePem, key}, publicKeyPEM)
		require.NoError(t, err)
		issued := parseCertificate(t, answer.ClientCertificatePem)
		record := c.record("a")
		assert.Equal(t, issued.SerialNumber.Text(16), record.CertSerial)
		assert.Equal(t, present.SerialNumber.Text(16), record.PreviousSerial)
		until := time.Now().Add(registration.Grace)
		assert.WithinRange(t, record.PreviousUntil, until.Add(-time.Minute), until)
		if lost != nil {
			_, err := s.renew(identity{lost, key}, publicKeyPEM)
			wantCode(t, err, codes.Unauthenticated)
			assert.ErrorContains(t, err, "was replaced by "+record.CertSerial)
		}
		lost = answer.ClientCertificatePem
	}
}

// TestGraceEndsWithTheCertificate even if the certificate has no registration.
func TestGraceEndsWithTheCertificate(t *testing.T) {
	c := newCluster(t)
	elector, _ := c.lead("one")
	s := c.serve(c.registrar(elector, c.storage))
	caller := c.issue(operatorOfA, time.Minute)
	_, publicKeyPEM := newKey(t)
	_, err := s.renew(caller, publicKeyPEM)
	require.NoError(t, err)
	certificate, record := parseCertificate(t, caller.certPEM), c.record("a")
	assert.Equal(t, certificate.SerialNumber.Text(16), record.PreviousSerial)
	assert.Equal(t, certificate.NotAfter, record.PreviousUntil)
}

// TestRegistrationKeepsThePrevious until all connections use the new certificate.
func TestRegistrationKeepsThePrevious(t *testing.T) {
	c := newCluster(t)
	elector, _ := c.lead("one")
	s := c.serve(c.registrar(elector, c.storage))
	_, publicKeyPEM := newKey(t)
	_, err := s.register(c.nonce("a"), publicKeyPEM)
	require.NoError(t, err)
	first := c.record("a").CertSerial
	_, err = s.register(c.nonce("a"), publicKeyPEM)
	require.NoError(t, err)
	assert.Equal(t, first, c.record("a").PreviousSerial)
}

func TestRevokedClientRegistersWithANewNonce(t *testing.T) {
	c := newCluster(t)
	elector, _ := c.lead("one")
	s := c.serve(c.registrar(elector, c.storage))
	key, publicKeyPEM := newKey(t)
	// of signs a nonce that was created at a time, in seconds from now.
	of := func(seconds time.Duration, change func(jwt.MapClaims)) string {
		created := time.Now().Add(seconds * time.Second)
		claims := jwt.MapClaims{
			"kind": "operator", "sub": clusterID, "cluster_id": clusterID, "tenant": "a",
			"iat": created.Unix(), "nbf": created.Add(-time.Hour).Unix(), "exp": created.Add(time.Hour).Unix(),
		}
		change(claims)
		token, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims).SignedString(c.keys.Nonce)
		require.NoError(t, err)
		return token
	}
	unchanged := func(jwt.MapClaims) {}
	undated := func(claims jwt.MapClaims) { delete(claims, "iat"); delete(claims, "nbf") }
	used, unused, usedUndated := of(-60, unchanged), of(-50, unchanged), of(-60, undated)
	onlyNotBefore := of(-40, func(claims jwt.MapClaims) { delete(claims, "iat") })
	for _, token := range []string{usedUndated, used} {
		_, err := s.register(token, publicKeyPEM)
		require.NoError(t, err)
	}
	answer, err := s.register(used, publicKeyPEM)
	require.NoError(t, err)
	before := c.record("a")

	numbers, err := registration.RevokeAll(t.Context(), c.storage, "a", clusterID)
	require.NoError(t, err)
	assert.Equal(t, []string{before.CertSerial, before.PreviousSerial}, numbers)
	_, err = s.renew(identity{answer.ClientCertificatePem, key}, publicKeyPEM)
	wantCode(t, err, codes.Unauthenticated)
	assert.ErrorContains(t, err, "was revoked")
	for _, token := range []string{used, unused, usedUndated, onlyNotBefore} {
		_, err = s.register(token, publicKeyPEM)
		wantCode(t, err, codes.Unauthenticated)
		assert.ErrorContains(t, err, "created before certificates of the tenant were revoked")
	}
	after := c.record("a")
	assert.Equal(t, before.CertSerial, after.CertSerial, "a rejected call changed the record")

	for _, token := range []string{c.nonce("a"), of(-60, func(claims jwt.MapClaims) { undated(claims); claims["jti"] = "new" })} {
		answer, err = s.register(token, publicKeyPEM)
		require.NoError(t, err)
		_, err = s.renew(identity{answer.ClientCertificatePem, key}, publicKeyPEM)
		require.NoError(t, err)
	}
	final := c.record("a")
	assert.Equal(t, after.RevokedSerials, final.RevokedSerials)
	assert.Equal(t, after.RevokedAt, final.RevokedAt)
}

// TestRevokedCertificateIsNotThePrevious of the next registration.
func TestRevokedCertificateIsNotThePrevious(t *testing.T) {
	c := newCluster(t)
	elector, _ := c.lead("one")
	s := c.serve(c.registrar(elector, c.storage))
	_, publicKeyPEM := newKey(t)
	_, err := s.register(c.nonce("a"), publicKeyPEM)
	require.NoError(t, err)
	number := c.record("a").CertSerial
	require.NoError(t, registration.Revoke(t.Context(), c.storage, "a", clusterID, number))
	require.NoError(t, registration.Revoke(t.Context(), c.storage, "a", clusterID, number))
	_, err = s.register(c.nonce("a"), publicKeyPEM)
	require.NoError(t, err)
	record := c.record("a")
	assert.Empty(t, record.PreviousSerial)
	assert.Equal(t, []string{number}, record.RevokedSerials)
}

// TestRevokeWithoutRegistration revokes a certificate that an administrator issued.
func TestRevokeWithoutRegistration(t *testing.T) {
	c := newCluster(t)
	elector, _ := c.lead("one")
	s := c.serve(c.registrar(elector, c.storage))
	_, publicKeyPEM := newKey(t)
	stolen, other := c.issue(operatorOfA, time.Hour), c.issue(operatorOfA, time.Hour)
	number := parseCertificate(t, stolen.certPEM).SerialNumber.Text(16)
	require.NoError(t, registration.Revoke(t.Context(), c.storage, "a", clusterID, number))
	_, err := s.renew(stolen, publicKeyPEM)
	wantCode(t, err, codes.Unauthenticated)
	_, err = s.renew(other, publicKeyPEM)
	require.NoError(t, err)

	require.NoError(t, c.storage.Delete(t.Context(), storage.OperatorKey("a", clusterID)))
	numbers, err := registration.RevokeAll(t.Context(), c.storage, "a", clusterID)
	require.NoError(t, err)
	assert.Empty(t, numbers)
	_, err = s.renew(other, publicKeyPEM)
	wantCode(t, err, codes.Unauthenticated)
}

func TestParseSerial(t *testing.T) {
	for text, want := range map[string]string{"a": "a", "0A": "a", "00:AB:01": "ab01", "abc": "abc", "": "", "0": "", "xyz": "", "a b": ""} {
		got, err := registration.ParseSerial(text)
		assert.Equal(t, want, got)
		assert.Equal(t, want == "", err != nil, "%q: %v", text, err)
	}
}

// TestFieldsOfALaterVersionAreKept: they may revoke a certificate.
func TestFieldsOfALaterVersionAreKept(t *testing.T) {
	c := newCluster(t)
	key := storage.OperatorKey("a", clusterID)
	_, err := c.storage.Create(t.Context(), key, []byte(`{"client_id":"prod","tenant":"a","cert_serial":"b","revoked_keys":["k"]}`))
	require.NoError(t, err)
	require.NoError(t, registration.Revoke(t.Context(), c.storage, "a", clusterID, "b"))
	public, _, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	require.NoError(t, registration.RecordIssued(t.Context(), c.storage, operatorOfA, &x509.Certificate{
		PublicKey: public, SerialNumber: big.NewInt(12), NotAfter: time.Now().Add(time.Hour),
	}, nil))
	object, err := c.storage.Get(t.Context(), key)
	require.NoError(t, err)
	var stored map[string]any
	require.NoError(t, json.Unmarshal(object.Data, &stored))
	require.Equal(t, []any{"k"}, stored["revoked_keys"])
	require.Equal(t, []any{"b"}, stored["revoked_serials"])
	require.Equal(t, "c", stored["cert_serial"])
}

// TestFormatOfALaterVersion is refused, and the object is not changed.
func TestFormatOfALaterVersion(t *testing.T) {
	c := newCluster(t)
	key := storage.OperatorKey("a", clusterID)
	const content = `{"format_version":2,"client_id":"prod","tenant":"a"}`
	_, err := c.storage.Create(t.Context(), key, []byte(content))
	require.NoError(t, err)
	require.ErrorContains(t, registration.Revoke(t.Context(), c.storage, "a", clusterID, "b"),
		key+": the object has format version 2, and this server reads versions up to 1")
	object, err := c.storage.Get(t.Context(), key)
	require.NoError(t, err)
	require.Equal(t, content, string(object.Data))
}
