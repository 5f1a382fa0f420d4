// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/pki"
)

// FuzzParseNonce parses arbitrary tokens, and arbitrary headers and claims with a valid
// signature. A token that parses must have all mandatory claims, and no change of
// its text may parse.
func FuzzParseNonce(f *testing.F) {
	key, public := newKey(1)
	for _, token := range []string{mustSign(NewNonceSigner(key).Agent(agent)), mustSign(NewNonceSigner(key).Operator(operator))} {
		parts := strings.Split(token, ".")
		f.Add(token, decode(parts[0]), decode(parts[1]), 0, byte('\n'))
		f.Add(token, decode(parts[0]), decode(parts[1]), len(token)-1, byte('A'))
	}
	f.Add("..", []byte(`{"alg":"EdDSA"}`), []byte(`null`), 3, byte('.'))
	f.Add("a.b.c", []byte(`{"alg":"none"}`), []byte(`{"exp":1e400}`), 5, byte('='))
	f.Add("", []byte(`{"alg":"EdDSA"}`), []byte(`{"kind":"operator","sub":"a","cluster_id":"a","tenant":"a","exp":9e9,"nbf":0}`), 40, byte('_'))

	f.Fuzz(func(t *testing.T, token string, header, payload []byte, at int, with byte) {
		check(t, token)
		signed := base64.RawURLEncoding.EncodeToString(header) + "." + base64.RawURLEncoding.EncodeToString(payload)
		signature, err := jwt.SigningMethodEdDSA.Sign(signed, key)
		require.NoError(t, err)
		token = signed + "." + base64.RawURLEncoding.EncodeToString(signature)
		if !check(t, token) {
			return
		}
		at = int(uint(at) % uint(len(token)))
		for _, changed := range []string{
			token[:at] + string([]byte{with}) + token[at+1:],
			token[:at] + string([]byte{with}) + token[at:],
			token[:at] + token[at+1:],
			token + string([]byte{with}),
		} {
			if _, err := ParseNonce(changed, public); changed != token && err == nil {
				t.Errorf("%q parses, which is %q with a change", changed, token)
			}
		}
	})
}

// check reports whether token parses, and fails the test if mandatory claims are
// missing.
func check(t *testing.T, token string) bool {
	t.Helper()
	_, public := newKey(1)
	c, err := ParseNonce(token, public)
	if err != nil {
		if (c != NonceClaims{}) {
			t.Errorf("%q is rejected and has %+v", token, c)
		}
		return false
	}
	known := c.Kind == pki.RoleAgent && c.Shard != "" || c.Kind == pki.RoleOperator
	if !known || c.Subject == "" || c.ClusterID == "" || c.Tenant == "" || !c.ExpiresAt.After(time.Now().Add(-time.Minute)) {
		t.Errorf("%q parses and has %+v", token, c)
	}
	return true
}

func mustSign(token string, err error) string {
	if err != nil {
		panic(err)
	}
	return token
}

func decode(part string) []byte {
	data, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		panic(err)
	}
	return data
}
