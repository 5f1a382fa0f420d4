// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"cmp"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"nstance.dev/operator/pkg/server/pki"
)

const (
	// DefaultNonceLifetime is how long the nonce of an operator is valid by
	// default (docs/server.md#registration).
	DefaultNonceLifetime = 3 * time.Hour
	// MaxNonceLifetime is how long the nonce of an operator may be valid. Until it is used, the
	// nonce is a password that is often copied into other systems.
	MaxNonceLifetime = 7 * 24 * time.Hour
	// The nonce of an agent is valid for agentLifetime, or as long as its machine may take to
	// register if that is more than slowRegistration; at most for maxAgentLifetime
	// (docs/protocol.md#registration). The servers of its shard create it and verify it.
	agentLifetime    = 4 * time.Minute
	slowRegistration = 5 * time.Minute
	maxAgentLifetime = time.Hour
	agentClockSkew   = 30 * time.Second
)

// AgentNonce is the content of an agent's nonce. Group and ConfigHash may be empty.
type AgentNonce struct {
	InstanceID string
	ClusterID  string
	Tenant     string
	Shard      string
	Group      string
	OnDemand   bool
	// ConfigHash is the runtime hash of the group. The agent reports it as its own
	// until it receives files.
	ConfigHash string
	// RegistrationTimeout is how long the machine may run before the agent must have registered,
	// zero if that is not limited.
	RegistrationTimeout time.Duration
}

// lifetime returns how long the nonce is valid.
func (a AgentNonce) lifetime() time.Duration {
	switch timeout := a.RegistrationTimeout; {
	case timeout == 0 || timeout > maxAgentLifetime:
		return maxAgentLifetime
	case timeout > slowRegistration:
		return timeout
	default:
		return agentLifetime
	}
}

// OperatorNonce is the content of an operator's nonce. Every field is mandatory.
type OperatorNonce struct {
	ClusterID string
	Tenant    string
	// Lifetime is how long the nonce is valid.
	Lifetime time.Duration
}

// NonceSigner creates nonces. It is safe for concurrent use.
type NonceSigner struct {
	key ed25519.PrivateKey
	// issuer is the owner of the key, with its certificate. It is nil for the cluster's nonce key.
	issuer *certifiedIssuer
}

// NewNonceSigner returns a signer with the cluster's nonce key.
func NewNonceSigner(key ed25519.PrivateKey) *NonceSigner {
	return &NonceSigner{key: key}
}

// Agent returns the nonce of an agent.
func (s *NonceSigner) Agent(a AgentNonce) (string, error) {
	return s.sign(tokenClaims{
		Kind:       pki.RoleAgent,
		ClusterID:  a.ClusterID,
		Tenant:     a.Tenant,
		Shard:      a.Shard,
		Group:      a.Group,
		OnDemand:   a.OnDemand,
		ConfigHash: a.ConfigHash,
	}, a.InstanceID, a.lifetime(), agentClockSkew)
}

// Operator returns the nonce of an operator.
func (s *NonceSigner) Operator(o OperatorNonce) (string, error) {
	if o.Lifetime <= 0 {
		return "", fmt.Errorf("sign a registration nonce: lifetime %s must be greater than zero", o.Lifetime)
	}
	if o.Lifetime > MaxNonceLifetime {
		return "", fmt.Errorf("sign a registration nonce: lifetime %s must be at most %s", o.Lifetime, MaxNonceLifetime)
	}
	return s.sign(tokenClaims{
		Kind:      pki.RoleOperator,
		ClusterID: o.ClusterID,
		Tenant:    o.Tenant,
	}, o.ClusterID, o.Lifetime, pki.ClockSkew)
}

// sign returns a nonce whose validity begins in the past, so that a server whose clock is
// behind accepts it.
func (s *NonceSigner) sign(c tokenClaims, subject string, lifetime, clockSkew time.Duration) (string, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return "", fmt.Errorf("sign a registration nonce: %w", err)
	}
	now := time.Now()
	expires := now.Add(lifetime)
	if s.issuer != nil {
		if err := s.issuer.check(c.Kind, c.Tenant, expires); err != nil {
			return "", fmt.Errorf("sign a registration nonce: %w", err)
		}
	}
	c.RegisteredClaims = jwt.RegisteredClaims{
		Subject: subject,
		// Times are in whole seconds. Without an id, two nonces of the same second would be
		// the same token, which only one client could use.
		ID:        id.String(),
		IssuedAt:  jwt.NewNumericDate(now),
		NotBefore: jwt.NewNumericDate(now.Add(-clockSkew)),
		ExpiresAt: jwt.NewNumericDate(expires),
	}
	if err := c.Validate(); err != nil {
		return "", fmt.Errorf("sign a registration nonce: %w", err)
	}
	unsigned := jwt.NewWithClaims(jwt.SigningMethodEdDSA, c)
	if s.issuer != nil {
		unsigned.Header[certificateHeader] = s.issuer.header()
	}
	token, err := unsigned.SignedString(s.key)
	if err != nil {
		return "", fmt.Errorf("sign a registration nonce: %w", err)
	}
	return token, nil
}

// tokenClaims are the claims of the token (https://www.rfc-editor.org/rfc/rfc7519#section-4).
type tokenClaims struct {
	jwt.RegisteredClaims

	Kind       string `json:"kind"`
	ClusterID  string `json:"cluster_id"`
	Tenant     string `json:"tenant"`
	Shard      string `json:"shard,omitempty"`
	Group      string `json:"group,omitempty"`
	OnDemand   bool   `json:"on_demand,omitempty"`
	ConfigHash string `json:"config_hash,omitempty"`
}

// Validate returns an error that names the missing claims. The parser calls it
// after it has checked the signature and the times.
func (c tokenClaims) Validate() error {
	if c.Kind != pki.RoleAgent && c.Kind != pki.RoleOperator {
		return fmt.Errorf("claim kind is %q, needs to be %q or %q", c.Kind, pki.RoleAgent, pki.RoleOperator)
	}
	var missing []error
	require := func(name, value string) {
		if value == "" {
			missing = append(missing, fmt.Errorf("claim %s is missing", name))
		}
	}
	require("sub", c.Subject)
	require("cluster_id", c.ClusterID)
	require("tenant", c.Tenant)
	if c.Kind == pki.RoleAgent {
		require("shard", c.Shard)
	}
	return errors.Join(missing...)
}

// checkLifetime returns an error if the nonce is valid for too long: somebody who could create
// nonces once could otherwise use them for ever. A nonce without a beginning counts from now on.
func (c tokenClaims) checkLifetime(now time.Time) error {
	limit := MaxNonceLifetime + pki.ClockSkew
	if c.Kind == pki.RoleAgent {
		limit = maxAgentLifetime
	}
	begin := now
	if created := cmp.Or(c.IssuedAt, c.NotBefore); created != nil && created.Before(now) {
		begin = created.Time
	}
	// The difference of times is capped, and so it never overflows.
	if lifetime := c.ExpiresAt.Sub(begin); lifetime > limit {
		return fmt.Errorf("it is valid for %s, at most %s are allowed", lifetime.Round(time.Second), limit)
	}
	return nil
}

// ErrInvalidNonce means that a nonce is not valid. The errors of ParseNonce wrap it.
var ErrInvalidNonce = errors.New("registration nonce is not valid")

// ExpiredError means that a nonce was valid. The errors of ParseNonce wrap it.
type ExpiredError struct {
	// Subject is the subject of the nonce.
	Subject string
	// At is when the nonce expired.
	At time.Time
}

func (e *ExpiredError) Error() string {
	return "it expired at " + e.At.UTC().Format(time.RFC3339)
}

// NonceClaims is the content of a verified nonce. Kind, Subject, ClusterID, Tenant and
// ExpiresAt are never empty, nor is Shard in the nonce of an agent.
type NonceClaims struct {
	// Kind is the role that the certificate will have, pki.RoleAgent or
	// pki.RoleOperator.
	Kind string
	// Subject is the instance id of an agent, the cluster id of an operator.
	Subject    string
	ClusterID  string
	Tenant     string
	Shard      string
	Group      string
	OnDemand   bool
	ConfigHash string
	// CreatedAt is when the nonce was created or, if the nonce does not contain that, when
	// its validity begins; in whole seconds. It is zero if the nonce contains neither.
	CreatedAt time.Time
	ExpiresAt time.Time
	// Issuer is the name of the nonce issuer that has signed the nonce. It is empty for the
	// cluster's nonce key.
	Issuer string
}

// Reason returns why a certificate is issued for the nonce, for the audit log.
func (c NonceClaims) Reason() string {
	if c.Issuer == "" {
		return "registration"
	}
	return "registration, nonce issuer " + c.Issuer
}

// ParseNonce verifies a nonce that a key has signed, and returns its content. The error wraps
// ErrInvalidNonce, and never contains the nonce. The claims iss and aud are not checked
// (docs/protocol.md#registration).
func ParseNonce(token string, key ed25519.PublicKey) (NonceClaims, error) {
	return parseNonce(token, func(*jwt.Token) (any, error) { return key, nil })
}

// parseNonce is ParseNonce for a key that keyOf returns, which gets the token before its signature
// is verified.
func parseNonce(token string, keyOf jwt.Keyfunc) (NonceClaims, error) {
	// The decoder skips line breaks. Without this check a nonce would have many texts, and
	// each text could be used once.
	if strings.ContainsAny(token, "\r\n") {
		return NonceClaims{}, fmt.Errorf("%w: it has a line break", ErrInvalidNonce)
	}
	var c tokenClaims
	_, err := jwt.ParseWithClaims(token, &c, keyOf,
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}),
		// A nonce without expiry would be a permanent password.
		jwt.WithExpirationRequired(),
		// For the same reason as above only one text of the signature is accepted
		// (https://pkg.go.dev/github.com/golang-jwt/jwt/v5#WithStrictDecoding).
		jwt.WithStrictDecoding())
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return NonceClaims{}, fmt.Errorf("%w: %w", ErrInvalidNonce, &ExpiredError{Subject: c.Subject, At: c.ExpiresAt.Time})
	case errors.Is(err, jwt.ErrTokenNotValidYet):
		return NonceClaims{}, fmt.Errorf("%w: it is not valid before %s", ErrInvalidNonce, c.NotBefore.UTC().Format(time.RFC3339))
	case err != nil:
		return NonceClaims{}, fmt.Errorf("%w: %w", ErrInvalidNonce, err)
	}
	if err := c.checkLifetime(time.Now()); err != nil {
		return NonceClaims{}, fmt.Errorf("%w: %w", ErrInvalidNonce, err)
	}
	parsed := NonceClaims{
		Kind:       c.Kind,
		Subject:    c.Subject,
		ClusterID:  c.ClusterID,
		Tenant:     c.Tenant,
		Shard:      c.Shard,
		Group:      c.Group,
		OnDemand:   c.OnDemand,
		ConfigHash: c.ConfigHash,
		ExpiresAt:  c.ExpiresAt.Time,
	}
	if created := cmp.Or(c.IssuedAt, c.NotBefore); created != nil {
		parsed.CreatedAt = created.Time
	}
	return parsed, nil
}
