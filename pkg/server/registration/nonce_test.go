// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"crypto"
	"crypto/ed25519"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/server/pki"
)

const instanceID = "knc06bgm7733st2576nx5jht4ecjw"

var (
	agent    = AgentNonce{InstanceID: instanceID, ClusterID: "prod", Tenant: "a", Shard: "us-west-2a", Group: "workers", OnDemand: true, ConfigHash: "sha256:00", RegistrationTimeout: 5 * time.Minute}
	operator = OperatorNonce{ClusterID: "prod", Tenant: "a", Lifetime: DefaultNonceLifetime}
)

// newKey returns the same key for the same number.
func newKey(number byte) (ed25519.PrivateKey, ed25519.PublicKey) {
	seed := make([]byte, ed25519.SeedSize)
	seed[0] = number
	key := ed25519.NewKeyFromSeed(seed)
	return key, key.Public().(ed25519.PublicKey)
}

func TestAgentRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, public := newKey(1)
		begin := time.Now()
		token, err := NewNonceSigner(key).Agent(agent)
		require.NoError(t, err)
		got, err := ParseNonce(token, public)
		require.NoError(t, err)
		want := NonceClaims{
			Kind: pki.RoleAgent, Subject: instanceID, ClusterID: "prod", Tenant: "a", Shard: "us-west-2a",
			Group: "workers", OnDemand: true, ConfigHash: "sha256:00", CreatedAt: got.CreatedAt, ExpiresAt: got.ExpiresAt,
		}
		if got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		// The whole validity, from NotBefore on, is less than five minutes.
		var c tokenClaims
		_, _, err = jwt.NewParser().ParseUnverified(token, &c)
		require.NoError(t, err)
		if lifetime := c.ExpiresAt.Sub(c.NotBefore.Time); lifetime >= 5*time.Minute || begin.Sub(c.NotBefore.Time) != agentClockSkew {
			t.Errorf("it is valid for %s from %s, want less than 5m from a little before %s", lifetime, c.NotBefore, begin)
		}
		wait(got.ExpiresAt.Add(-time.Nanosecond))
		if _, err := ParseNonce(token, public); err != nil {
			t.Errorf("just before it expires: %v", err)
		}
		wait(got.ExpiresAt)
		if _, err := ParseNonce(token, public); !errors.Is(err, ErrInvalidNonce) || !strings.Contains(err.Error(), "it expired at 2000-01-01T00:04:00Z") {
			t.Errorf("when it expires: got %v", err)
		}
	})
}

// A nonce does not expire while the machine may still register.
func TestNonceOfASlowMachine(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{
		time.Minute: 4 * time.Minute, 5 * time.Minute: 4 * time.Minute, 6 * time.Minute: 6 * time.Minute,
		15 * time.Minute: 15 * time.Minute, 2 * time.Hour: time.Hour, 0: time.Hour,
	} {
		key, public := newKey(1)
		token, err := NewNonceSigner(key).Agent(AgentNonce{
			InstanceID: instanceID, ClusterID: "prod", Tenant: "a", Shard: "us-west-2a", RegistrationTimeout: timeout,
		})
		require.NoError(t, err)
		got, err := ParseNonce(token, public)
		require.NoError(t, err)
		assert.Equal(t, want, got.ExpiresAt.Sub(got.CreatedAt), "with a timeout of %s", timeout)
	}
}

// wait advances the clock of the synctest bubble to a time.
func wait(until time.Time) {
	<-time.After(time.Until(until))
}

func TestOperatorRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, public := newKey(1)
		token, err := NewNonceSigner(key).Operator(operator)
		require.NoError(t, err)
		got, err := ParseNonce(token, public)
		require.NoError(t, err)
		want := NonceClaims{Kind: pki.RoleOperator, Subject: "prod", ClusterID: "prod", Tenant: "a", CreatedAt: got.CreatedAt, ExpiresAt: got.ExpiresAt}
		if got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		if !got.CreatedAt.Equal(time.Now()) {
			t.Errorf("it was created at %s, want %s", got.CreatedAt, time.Now())
		}
		if want := time.Now().Add(3 * time.Hour); !got.ExpiresAt.Equal(want) {
			t.Errorf("it expires at %s, want %s", got.ExpiresAt, want)
		}
		// A server whose clock is behind may verify it.
		var c tokenClaims
		_, _, err = jwt.NewParser().ParseUnverified(token, &c)
		require.NoError(t, err)
		if want := time.Now().Add(-15 * time.Minute); !c.NotBefore.Equal(want) {
			t.Errorf("it is valid from %s, want from %s", c.NotBefore, want)
		}
		// Equal tokens would be valid for one client only.
		again, err := NewNonceSigner(key).Operator(operator)
		require.NoError(t, err)
		if token == again {
			t.Error("two nonces of the same second are the same token")
		}
	})
}

func TestSignerRejectsIncompleteClaims(t *testing.T) {
	key, _ := newKey(1)
	signer := NewNonceSigner(key)
	for _, change := range []func(*AgentNonce){
		func(a *AgentNonce) { a.InstanceID = "" },
		func(a *AgentNonce) { a.ClusterID = "" },
		func(a *AgentNonce) { a.Tenant = "" },
		func(a *AgentNonce) { a.Shard = "" },
	} {
		a := agent
		change(&a)
		if _, err := signer.Agent(a); err == nil {
			t.Errorf("%+v was signed", a)
		}
	}
	for _, change := range []func(*OperatorNonce){
		func(o *OperatorNonce) { o.ClusterID = "" },
		func(o *OperatorNonce) { o.Tenant = "" },
		func(o *OperatorNonce) { o.Lifetime = 0 },
		func(o *OperatorNonce) { o.Lifetime = -time.Hour },
		func(o *OperatorNonce) { o.Lifetime = MaxNonceLifetime + 1 },
	} {
		o := operator
		change(&o)
		if _, err := signer.Operator(o); err == nil {
			t.Errorf("%+v was signed", o)
		}
	}
}

func TestParseNonceRejects(t *testing.T) {
	key, public := newKey(1)
	other, _ := newKey(2)
	future, past := time.Now().Add(4*time.Minute), time.Now().Add(-time.Hour)
	// good has the mandatory claims; issuer and audience are not checked.
	good := func() jwt.MapClaims {
		return jwt.MapClaims{
			"kind": "agent", "sub": instanceID, "cluster_id": "prod", "tenant": "a", "shard": "us-west-2a",
			"exp": future.Unix(), "iss": "issuer", "aud": "audience",
		}
	}
	sign := func(method jwt.SigningMethod, key crypto.PrivateKey, change func(jwt.MapClaims)) string {
		t.Helper()
		claims := good()
		change(claims)
		token, err := jwt.NewWithClaims(method, claims).SignedString(key)
		require.NoError(t, err)
		return token
	}
	set := func(name string, value any) string {
		t.Helper()
		return sign(jwt.SigningMethodEdDSA, key, func(c jwt.MapClaims) { c[name] = value })
	}
	without := func(name string) string {
		t.Helper()
		return sign(jwt.SigningMethodEdDSA, key, func(c jwt.MapClaims) { delete(c, name) })
	}
	asIs := func(jwt.MapClaims) {}
	token := sign(jwt.SigningMethodEdDSA, key, asIs)
	if _, err := ParseNonce(token, public); err != nil {
		t.Fatalf("the valid nonce: %v", err)
	}
	tests := []struct {
		name, token, want string
	}{
		{"empty", "", "invalid number of segments"},
		{"no token", "xyz", "invalid number of segments"},
		{"without signature", token[:strings.LastIndex(token, ".")+1], "signature is invalid"},
		{"by another key", sign(jwt.SigningMethodEdDSA, other, asIs), "signature is invalid"},
		{"not signed", sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, asIs), "signing method none is invalid"},
		// The public key is public: it must not work as a shared secret.
		{"public key as shared secret", sign(jwt.SigningMethodHS256, []byte(public), asIs), "signing method HS256 is invalid"},
		{"expired", set("exp", past.Unix()), "it expired at " + past.UTC().Format(time.RFC3339)},
		{"no expiry", without("exp"), "exp claim is required"},
		{"expiry is a text", set("exp", "tomorrow"), "could not JSON decode claim"},
		{"not valid yet", set("nbf", future.Unix()), "it is not valid before " + future.UTC().Format(time.RFC3339)},
		{"no kind", without("kind"), `claim kind is ""`},
		{"another kind", set("kind", "admin"), `claim kind is "admin", needs to be "agent" or "operator"`},
		{"no subject", without("sub"), "claim sub is missing"},
		{"empty subject", set("sub", ""), "claim sub is missing"},
		{"no cluster", without("cluster_id"), "claim cluster_id is missing"},
		{"no tenant", without("tenant"), "claim tenant is missing"},
		{"no shard", without("shard"), "claim shard is missing"},
		// The last letter of the signature has unused bits.
		{"another text of the same signature", token[:len(token)-1] + string(token[len(token)-1]+1), "could not base64 decode signature"},
		{"a line break at the end", token + "\n", "line break"},
		{"a line break in the signature", token[:len(token)-10] + "\r\n" + token[len(token)-10:], "line break"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ParseNonce(tc.token, public)
			if !errors.Is(err, ErrInvalidNonce) || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("got %v, want %q", err, tc.want)
			}
			if tc.token != "" && strings.Contains(err.Error(), tc.token) {
				t.Errorf("the error shows the nonce: %v", err)
			}
		})
	}
}

// A nonce that is valid for longer than nonces may be is refused, however its times describe that:
// it would be a password that outlives all who have had the key of the nonces.
func TestNonceThatIsValidForTooLong(t *testing.T) {
	const limit, ofAgents = MaxNonceLifetime + pki.ClockSkew, maxAgentLifetime
	for name, test := range map[string]struct {
		kind string
		// created, begin and expiry are from now on; nil is left out.
		created, begin *time.Duration
		expiry         time.Duration
		want           string
	}{
		"the longest":                             {"operator", ptr.To[time.Duration](0), ptr.To(-pki.ClockSkew), MaxNonceLifetime, ""},
		"the longest, by a clock that is ahead":   {"operator", ptr.To(pki.ClockSkew), ptr.To[time.Duration](0), limit, ""},
		"the longest without a creation":          {"operator", nil, ptr.To(-pki.ClockSkew), MaxNonceLifetime, ""},
		"the longest without times":               {"operator", nil, nil, limit, ""},
		"ten years":                               {"operator", ptr.To[time.Duration](0), ptr.To(-pki.ClockSkew), 87600 * time.Hour, "it is valid for 87600h0m0s, at most 168h15m0s are allowed"},
		"ten years that are nearly over":          {"operator", ptr.To(-87600 * time.Hour), nil, time.Hour, "it is valid for 87601h0m0s"},
		"ten years since it has begun to be":      {"operator", nil, ptr.To(-87600 * time.Hour), time.Hour, "it is valid for 87601h0m0s"},
		"ten years without times":                 {"operator", nil, nil, 87600 * time.Hour, "it is valid for 87600h0m0s"},
		"ten years, created in ten years":         {"operator", ptr.To(87599 * time.Hour), nil, 87600 * time.Hour, "it is valid for 87600h0m0s"},
		"more years than a duration has":          {"operator", ptr.To[time.Duration](0), nil, 1<<63 - 1, "at most 168h15m0s are allowed"},
		"an agent, the longest":                   {"agent", ptr.To[time.Duration](0), nil, ofAgents, ""},
		"an agent, longer":                        {"agent", ptr.To[time.Duration](0), nil, ofAgents + time.Second, "it is valid for 1h0m1s, at most 1h0m0s are allowed"},
		"an agent, longer, with a beginning only": {"agent", nil, ptr.To(-time.Minute), ofAgents, "it is valid for 1h1m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				key, public := newKey(1)
				now := time.Now()
				claims := jwt.MapClaims{
					"kind": test.kind, "sub": instanceID, "cluster_id": "prod", "tenant": "a", "shard": "us-west-2a",
					"exp": now.Add(test.expiry).Unix(),
				}
				if test.created != nil {
					claims["iat"] = now.Add(*test.created).Unix()
				}
				if test.begin != nil {
					claims["nbf"] = now.Add(*test.begin).Unix()
				}
				token, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, claims).SignedString(key)
				require.NoError(t, err)
				_, err = ParseNonce(token, public)
				if test.want == "" {
					require.NoError(t, err)
					return
				}
				require.ErrorIs(t, err, ErrInvalidNonce)
				require.ErrorContains(t, err, test.want)
			})
		})
	}
}

// TestOperatorNeedsNoShard because an administrator creates its nonce.
func TestOperatorNeedsNoShard(t *testing.T) {
	key, public := newKey(1)
	token, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, jwt.MapClaims{
		"kind": "operator", "sub": "prod", "cluster_id": "prod", "tenant": "a", "exp": time.Now().Add(time.Hour).Unix(),
	}).SignedString(key)
	require.NoError(t, err)
	if _, err := ParseNonce(token, public); err != nil {
		t.Error(err)
	}
}
