// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package nonce signs and verifies registration nonces: the tokens with which
// agents and operators get their first client certificate
// (docs/protocol.md#registration).
package nonce

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"nstance.dev/operator/pkg/server/pki"
)

const (
	// DefaultOperatorLifetime is how long the nonce of an operator is valid by
	// default (docs/server.md#registration).
	DefaultOperatorLifetime = 3 * time.Hour
	// agentLifetime and agentClockSkew together are less than the five minutes that the
	// nonce of an agent may be valid (docs/protocol.md#registration). The servers of its
	// shard create it and verify it.
	agentLifetime  = 4 * time.Minute
	agentClockSkew = 30 * time.Second
)

// Agent is the content of an agent's nonce. Group and ConfigHash may be empty.
type Agent struct {
	InstanceID string
	ClusterID  string
	Tenant     string
	Shard      string
	Group      string
	OnDemand   bool
	// ConfigHash is the runtime hash of the group. The agent reports it as its own
	// until it receives files.
	ConfigHash string
}

// Operator is the content of an operator's nonce. Every field is mandatory.
type Operator struct {
	ClusterID string
	Tenant    string
	// Lifetime is how long the nonce is valid.
	Lifetime time.Duration
}

// Signer creates nonces. It is safe for concurrent use.
type Signer struct {
	key ed25519.PrivateKey
}

// NewSigner returns a signer with the cluster's nonce key.
func NewSigner(key ed25519.PrivateKey) *Signer {
	return &Signer{key: key}
}

// Agent returns the nonce of an agent. It is valid for less than five minutes.
func (s *Signer) Agent(a Agent) (string, error) {
	return s.sign(claims{
		Kind:       pki.RoleAgent,
		ClusterID:  a.ClusterID,
		Tenant:     a.Tenant,
		Shard:      a.Shard,
		Group:      a.Group,
		OnDemand:   a.OnDemand,
		ConfigHash: a.ConfigHash,
	}, a.InstanceID, agentLifetime, agentClockSkew)
}

// Operator returns the nonce of an operator.
func (s *Signer) Operator(o Operator) (string, error) {
	if o.Lifetime <= 0 {
		return "", fmt.Errorf("sign a registration nonce: lifetime %s must be greater than zero", o.Lifetime)
	}
	return s.sign(claims{
		Kind:      pki.RoleOperator,
		ClusterID: o.ClusterID,
		Tenant:    o.Tenant,
	}, o.ClusterID, o.Lifetime, pki.ClockSkew)
}

// sign returns a nonce whose validity begins in the past, so that a server whose clock is
// behind accepts it.
func (s *Signer) sign(c claims, subject string, lifetime, clockSkew time.Duration) (string, error) {
	id, err := uuid.NewRandom()
	if err != nil {
		return "", fmt.Errorf("sign a registration nonce: %w", err)
	}
	now := time.Now()
	c.RegisteredClaims = jwt.RegisteredClaims{
		Subject: subject,
		// Times are in whole seconds. Without an id, two nonces of the same second
		// would be the same token, which is valid for one client only.
		ID:        id.String(),
		IssuedAt:  jwt.NewNumericDate(now),
		NotBefore: jwt.NewNumericDate(now.Add(-clockSkew)),
		ExpiresAt: jwt.NewNumericDate(now.Add(lifetime)),
	}
	if err := c.Validate(); err != nil {
		return "", fmt.Errorf("sign a registration nonce: %w", err)
	}
	token, err := jwt.NewWithClaims(jwt.SigningMethodEdDSA, c).SignedString(s.key)
	if err != nil {
		return "", fmt.Errorf("sign a registration nonce: %w", err)
	}
	return token, nil
}

// claims is the content of the token.
type claims struct {
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
func (c claims) Validate() error {
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
