// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nonce

import (
	"cmp"
	"crypto/ed25519"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// ErrInvalid means that a nonce is not valid. The errors of Parse wrap it.
var ErrInvalid = errors.New("registration nonce is not valid")

// Claims is the content of a verified nonce. Kind, Subject, ClusterID, Tenant and
// ExpiresAt are never empty, nor is Shard in the nonce of an agent.
type Claims struct {
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
	// CreatedAt is when the nonce was created or, if it does not contain that, from when
	// on it is valid; in whole seconds. It is zero if the nonce contains neither.
	CreatedAt time.Time
	ExpiresAt time.Time
}

// Parse verifies a nonce and returns its content. The error wraps ErrInvalid, and
// never contains the nonce. Issuer and audience are not checked
// (docs/protocol.md#registration).
func Parse(token string, key ed25519.PublicKey) (Claims, error) {
	// The decoder skips line breaks. Without this check a nonce would have many
	// texts, and each of them could be used once.
	if strings.ContainsAny(token, "\r\n") {
		return Claims{}, fmt.Errorf("%w: it has a line break", ErrInvalid)
	}
	var c claims
	_, err := jwt.ParseWithClaims(token, &c, func(*jwt.Token) (any, error) { return key, nil },
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}),
		// A nonce without expiry would be a permanent password.
		jwt.WithExpirationRequired(),
		// For the same reason as above only one text of the signature is accepted.
		jwt.WithStrictDecoding())
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return Claims{}, fmt.Errorf("%w: it expired at %s", ErrInvalid, c.ExpiresAt.UTC().Format(time.RFC3339))
	case errors.Is(err, jwt.ErrTokenNotValidYet):
		return Claims{}, fmt.Errorf("%w: it is not valid before %s", ErrInvalid, c.NotBefore.UTC().Format(time.RFC3339))
	case err != nil:
		return Claims{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	parsed := Claims{
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
