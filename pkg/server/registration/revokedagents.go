// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package registration

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/storage"
)

// RevokedAgents are the revoked certificates of the agents of a shard, an object of the storage
// (docs/server-reference.md#storage). A nil value has none.
type RevokedAgents struct {
	// Instances has the revocations by instance id.
	Instances map[string]AgentRevocation `json:"instances"`
	// Unknown are fields that a later version has stored.
	Unknown storage.UnknownFields `json:"-"`
}

// AgentRevocation are the revoked certificates of one agent.
type AgentRevocation struct {
	// Before revokes all certificates and nonces that were created before it. It is zero if only
	// single certificates are revoked.
	Before time.Time `json:"before,omitzero"`
	// Serials are the serial numbers of single certificates in hexadecimal digits, sorted.
	Serials []string `json:"serials,omitempty"`
}

// plainRevokedAgents is a RevokedAgents without its methods, for package json.
type plainRevokedAgents RevokedAgents

// MarshalJSON returns the stored form.
func (r RevokedAgents) MarshalJSON() ([]byte, error) {
	return storage.Encode(plainRevokedAgents(r), r.Unknown)
}

// UnmarshalJSON reads the result of MarshalJSON of any version.
func (r *RevokedAgents) UnmarshalJSON(data []byte) error {
	plain, unknown, err := storage.Decode[plainRevokedAgents](data)
	if err != nil {
		return err
	}
	plain.Unknown = unknown
	*r = RevokedAgents(plain)
	return nil
}

// Check returns an error, which wraps ErrRevoked, if the certificate of an instance is revoked.
func (r *RevokedAgents) Check(instance string, certificate *x509.Certificate) error {
	if r == nil {
		return nil
	}
	revocation := r.Instances[instance]
	issued := certificate.NotBefore.Add(pki.ClockSkew)
	if issued.Before(revocation.Before) || slices.Contains(revocation.Serials, serial(certificate)) {
		return rejected(ErrRevoked, serial(certificate), "")
	}
	return nil
}

// CheckNonce returns an error, which wraps ErrInvalidNonce, if the nonce of an instance was
// created before all certificates of the instance were revoked.
func (r *RevokedAgents) CheckNonce(claims NonceClaims) error {
	if r == nil {
		return nil
	}
	if before := r.Instances[claims.Subject].Before; !before.IsZero() && claims.CreatedAt.Before(before) {
		return fmt.Errorf("%w: it was created before the certificates of instance %s were revoked", ErrInvalidNonce, claims.Subject)
	}
	return nil
}

// RevokeAgent revokes the certificate of an instance with a serial number in hexadecimal digits,
// or all certificates and nonces that exist if number is empty.
func RevokeAgent(ctx context.Context, store storage.Store, shard, instance, number string) error {
	const attempts = 100
	for attempt := 1; ; attempt++ {
		err := tryRevokeAgent(ctx, store, storage.RevokedAgentsKey(shard), instance, number)
		if attempt == attempts || !errors.Is(err, storage.ErrConflict) {
			return err
		}
	}
}

func tryRevokeAgent(ctx context.Context, store storage.Store, key, instance, number string) error {
	present, etag, err := readRevokedAgents(ctx, store, key)
	if err != nil {
		return err
	}
	next := RevokedAgents{Instances: map[string]AgentRevocation{}}
	if present != nil {
		next.Unknown = present.Unknown
		maps.Copy(next.Instances, present.Instances)
	}
	revocation := next.Instances[instance]
	if number == "" {
		revocation.Before = time.Now().UTC()
	} else if !slices.Contains(revocation.Serials, number) {
		revocation.Serials = append(slices.Clone(revocation.Serials), number)
		slices.Sort(revocation.Serials)
	}
	next.Instances[instance] = revocation
	data, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encode the revoked agents: %w", err)
	}
	if present != nil {
		_, err = store.Replace(ctx, key, data, etag)
	} else {
		_, err = store.Create(ctx, key, data)
	}
	if err != nil {
		return fmt.Errorf("store the revoked agents: %w", err)
	}
	return nil
}

// ReadRevokedAgents returns the revoked agents of a shard, nil if there are none.
func ReadRevokedAgents(ctx context.Context, store storage.Store, shard string) (*RevokedAgents, error) {
	revoked, _, err := readRevokedAgents(ctx, store, storage.RevokedAgentsKey(shard))
	return revoked, err
}

func readRevokedAgents(ctx context.Context, store storage.Store, key string) (*RevokedAgents, string, error) {
	object, err := store.Get(ctx, key)
	if errors.Is(err, storage.ErrNotFound) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("read the revoked agents: %w", err)
	}
	var revoked RevokedAgents
	if err := json.Unmarshal(object.Data, &revoked); err != nil {
		return nil, "", fmt.Errorf("read the revoked agents: object %s: %w", key, err)
	}
	return &revoked, object.ETag, nil
}
