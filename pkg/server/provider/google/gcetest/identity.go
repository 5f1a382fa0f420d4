// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcetest

import (
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"
)

// IdentityIssuer signs identity tokens of machines as Google does, and serves its keys
// (https://cloud.google.com/compute/docs/instances/verifying-instance-identity#token_format).
type IdentityIssuer struct {
	// URL is the address of the keys.
	URL string
	// Unavailable is true while the keys cannot be read, and Requests the number of requests.
	Unavailable atomic.Bool
	Requests    atomic.Int64

	keyID string
	key   *rsa.PrivateKey
}

// StartIdentityIssuer starts an issuer, which stops with the test.
func StartIdentityIssuer(t testing.TB) *IdentityIssuer {
	t.Helper()
	i := &IdentityIssuer{}
	i.Rotate(t, "first")
	server := httptest.NewServer(http.HandlerFunc(i.serveKeys))
	t.Cleanup(server.Close)
	i.URL = server.URL
	return i
}

// Rotate makes the issuer sign with another key.
func (i *IdentityIssuer) Rotate(t testing.TB, keyID string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	i.keyID, i.key = keyID, key
}

func (i *IdentityIssuer) serveKeys(w http.ResponseWriter, _ *http.Request) {
	i.Requests.Add(1)
	if i.Unavailable.Load() {
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	}
	encode := base64.RawURLEncoding.EncodeToString
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"keys": []map[string]string{{
		"kty": "RSA", "alg": "RS256", "use": "sig", "kid": i.keyID,
		"n": encode(i.key.N.Bytes()), "e": encode(big.NewInt(int64(i.key.E)).Bytes()),
	}}})
}

// Token returns what the metadata server of a machine of Project returns for an audience, in the
// format "full", with some claims changed.
func (i *IdentityIssuer) Token(t testing.TB, zone, name, audience string, changed map[string]any) []byte {
	t.Helper()
	now := time.Now()
	claims := jwt.MapClaims{
		"iss": "https://accounts.google.com", "aud": audience, "azp": "1", "sub": "1", "email": "1-compute@developer.gserviceaccount.com",
		"email_verified": true, "iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
		"google": map[string]any{"compute_engine": map[string]any{
			"instance_creation_timestamp": now.Add(-time.Minute).Unix(), "instance_id": "152986662232938449", "instance_name": name,
			"project_id": Project, "project_number": 1234567890, "zone": zone,
		}},
	}
	maps.Copy(claims, changed)
	token := jwt.NewWithClaims(jwt.SigningMethodRS256, claims)
	token.Header["kid"] = i.keyID
	signed, err := token.SignedString(i.key)
	require.NoError(t, err)
	return []byte(signed)
}
