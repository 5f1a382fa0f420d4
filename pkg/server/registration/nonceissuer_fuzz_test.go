// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/storage/file"
)

// FuzzNonceIssuer verifies nonces with arbitrary headers and certificates, which the key of an
// issuer has signed. What is accepted has the certificate of the issuer, and is within its scope.
func FuzzNonceIssuer(f *testing.F) {
	authority, err := pki.NewAuthority("prod")
	require.NoError(f, err)
	store, err := file.Open(f.TempDir())
	require.NoError(f, err)
	opened, err := secrets.New(store, make([]byte, 32))
	require.NoError(f, err)
	issuer := pki.NonceIssuer{Name: "ci", Tenants: []string{"a"}, Roles: []string{pki.RoleOperator}}
	certificate, key, err := NewNonceIssuer(authority, issuer, time.Hour)
	require.NoError(f, err)
	_, err = AddNonceIssuer(f.Context(), store, opened, authority, certificate, key)
	require.NoError(f, err)
	_, public := newKey(1)
	verifier := NonceVerifier{Key: public, Authority: authority, Store: store}

	f.Add("operator", "a", []byte(nil), true, certificate.Raw, uint(0), byte(0))
	f.Add("operator", "a", []byte(nil), false, []byte(nil), uint(0), byte(0))
	f.Add("agent", "a", []byte(nil), true, []byte(nil), uint(40), byte(1))
	f.Add("operator", "b", []byte(nil), true, []byte(nil), uint(len(certificate.Raw)-70), byte(0x80))
	f.Add("operator", "a", []byte(`["AAAA"]`), false, []byte(nil), uint(0), byte(0))
	f.Add("operator", "a", []byte(`{"a": 1}`), false, []byte(nil), uint(0), byte(0))
	f.Add("operator", "a", []byte(`[null, 1]`), false, []byte(nil), uint(0), byte(0))
	// With own, the certificate is the issuer's with one changed byte, instead of der.
	f.Fuzz(func(t *testing.T, kind, tenant string, header []byte, own bool, der []byte, at uint, change byte) {
		if own {
			der = slices.Clone(certificate.Raw)
			der[at%uint(len(der))] ^= change
		}
		token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{
			"kind": kind, "sub": "prod", "cluster_id": "prod", "tenant": tenant, "shard": "s",
			"iat": time.Now().Unix(), "exp": time.Now().Add(time.Minute).Unix(),
		})
		var value any = []string{base64.StdEncoding.EncodeToString(der)}
		if json.Valid(header) {
			value = json.RawMessage(header)
		}
		token.Header[certificateHeader] = value
		signed, err := token.SignedString(key)
		if err != nil {
			return
		}
		claims, err := verifier.Verify(t.Context(), signed)
		if err != nil {
			require.ErrorIs(t, err, ErrInvalidNonce)
			assert.Equal(t, NonceClaims{}, claims)
			return
		}
		assert.Equal(t, []string{"ci", "operator", "a"}, []string{claims.Issuer, claims.Kind, claims.Tenant})
		if !json.Valid(header) {
			assert.Equal(t, certificate.Raw, der)
		}
	})
}

// FuzzNonceIssuerRecord reads arbitrary records of nonce issuers, as a writer of the bucket could
// store. A record that is read is the same after it was written.
func FuzzNonceIssuerRecord(f *testing.F) {
	f.Add([]byte(`{"name": "ci", "certificates": [{"serial": "1", "expires_at": "2026-01-01T00:00:00Z"}], "later": 1}`))
	f.Add([]byte(`{"certificates": [{"serial": "1", "revoked_at": "2026-01-01T00:00:00Z"}, {}]}`))
	f.Add([]byte(`{"certificates": [null]}`))
	f.Add([]byte(`[]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var record, read NonceIssuerRecord
		if json.Unmarshal(data, &record) != nil {
			return
		}
		_ = record.check("ci", "1")
		written, err := json.Marshal(record)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(written, &read), "%s", written)
		again, err := json.Marshal(read)
		require.NoError(t, err)
		assert.JSONEq(t, string(written), string(again))
	})
}
