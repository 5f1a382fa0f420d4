// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package google

import (
	"errors"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/google/gcetest"
	"nstance.dev/operator/pkg/server/provider/providertest"
	"nstance.dev/operator/pkg/testing/runtest"
)

const (
	identityAudience = "nstance://registration/1"
	identityZone     = "us-central1-a"
	identityName     = "knd06bgm7733st2576nx5jht4ecjx"
)

func TestAnIdentityTokenIsOfUseForItsMachineAndAudienceOnly(t *testing.T) {
	issuer, other := gcetest.StartIdentityIssuer(t), gcetest.StartIdentityIssuer(t)
	o := &Options{IdentityKeysURL: issuer.URL}
	own := providerID(gcetest.Project, identityZone, identityName)
	token := func(changed map[string]any) []byte {
		return issuer.Token(t, identityZone, identityName, identityAudience, changed)
	}
	require.NoError(t, o.VerifyIdentity(t.Context(), own, token(nil), identityAudience))
	require.NoError(t, o.VerifyIdentity(t.Context(), own, token(nil), identityAudience))
	assert.EqualValues(t, 1, issuer.Requests.Load(), "the keys are kept")

	unsigned, err := jwt.NewWithClaims(jwt.SigningMethodNone, jwt.MapClaims{
		"iss": "https://accounts.google.com", "aud": identityAudience, "exp": time.Now().Add(time.Hour).Unix(),
	}).SignedString(jwt.UnsafeAllowNoneSignatureType)
	require.NoError(t, err)
	for _, tc := range []struct {
		name, providerID string
		token            []byte
		want             string
	}{
		{"another machine", providerID(gcetest.Project, identityZone, "other"), token(nil), `is of machine "` + own + `", must be of gce://test-project/us-central1-a/other`},
		{"another zone", providerID(gcetest.Project, "us-central1-b", identityName), token(nil), "is of machine"},
		{"another project", providerID("other-project", identityZone, identityName), token(nil), "is of machine"},
		{"another audience", own, token(map[string]any{"aud": "nstance://registration/2"}), "expected audience"},
		{"no audience", own, token(map[string]any{"aud": nil}), "expected audience"},
		{"another issuer", own, token(map[string]any{"iss": "https://example.com"}), "different provider"},
		{"a token that has expired", own, token(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}), "token is expired"},
		{"the token of a service account", own, token(map[string]any{"google": nil}), `is of machine "gce:///`},
		{"another signer", own, other.Token(t, identityZone, identityName, identityAudience, nil), "failed to verify"},
		{"no signature", own, []byte(unsigned), "the identity token is not valid"},
		{"no token", own, []byte("{}"), "the identity token is not valid"},
	} {
		err := o.VerifyIdentity(t.Context(), tc.providerID, tc.token, identityAudience)
		require.ErrorContains(t, err, tc.want, tc.name)
		assert.NotErrorIs(t, err, provider.ErrNotVerified, tc.name)
	}
	issuer.Rotate(t, "second")
	require.NoError(t, o.VerifyIdentity(t.Context(), own, token(nil), identityAudience))
}

// If the keys cannot be read, it is not known whether a token is valid.
func TestKeysThatCannotBeReadRefuseNoToken(t *testing.T) {
	issuer := gcetest.StartIdentityIssuer(t)
	o := &Options{IdentityKeysURL: issuer.URL}
	own := providerID(gcetest.Project, identityZone, identityName)
	token := issuer.Token(t, identityZone, identityName, identityAudience, nil)
	issuer.Unavailable.Store(true)
	err := o.VerifyIdentity(t.Context(), own, token, identityAudience)
	require.ErrorIs(t, err, provider.ErrNotVerified)
	assert.ErrorContains(t, err, "503")
	issuer.Unavailable.Store(false)
	// A call that begins while the first one ends has its result: the agent tries again.
	require.Eventually(t, func() bool {
		err = o.VerifyIdentity(t.Context(), own, token, identityAudience)
		return !errors.Is(err, provider.ErrNotVerified)
	}, runtest.Timeout, time.Millisecond)
	require.NoError(t, err)

	nowhere := &Options{IdentityKeysURL: "http://127.0.0.1:1"}
	require.ErrorIs(t, nowhere.VerifyIdentity(t.Context(), own, token, identityAudience), provider.ErrNotVerified)
}

func TestAttestationOptions(t *testing.T) {
	members := minimal()
	options, errs := read(t, providertest.Object(members))
	require.Empty(t, errs)
	assert.Nil(t, provider.RequiredAttestation(options))
	members["attestation"] = `"required"`
	for _, address := range []string{"https://www.googleapis.com/oauth2/v3/certs", "http://127.0.0.1:8080"} {
		members["identity_keys_url"] = `"` + address + `"`
		options, errs = read(t, providertest.Object(members))
		require.Empty(t, errs, address)
		assert.NotNil(t, provider.RequiredAttestation(options))
	}
	for _, address := range []string{"http://www.googleapis.com/oauth2/v3/certs", "www.googleapis.com", "https://a:b@c", "file:///keys"} {
		members["identity_keys_url"] = `"` + address + `"`
		_, errs = read(t, providertest.Object(members))
		require.Len(t, errs, 1, address)
		assert.Contains(t, errs[0], "options.identity_keys_url: Invalid value")
	}
	members["attestation"] = `"optional"`
	delete(members, "identity_keys_url")
	_, errs = read(t, providertest.Object(members))
	assert.Equal(t, []string{`options.attestation: Unsupported value: "optional": supported values: "required"`}, errs)
}

// FuzzVerifyIdentity: no token is accepted for a machine for which none was signed.
func FuzzVerifyIdentity(f *testing.F) {
	issuer := gcetest.StartIdentityIssuer(f)
	o := &Options{IdentityKeysURL: issuer.URL}
	f.Add(string(issuer.Token(f, identityZone, identityName, identityAudience, nil)))
	f.Add("a.b.c")
	f.Add("{}")
	f.Fuzz(func(t *testing.T, token string) {
		assert.Error(t, o.VerifyIdentity(t.Context(), providerID(gcetest.Project, identityZone, "other"), []byte(token), identityAudience))
	})
}
