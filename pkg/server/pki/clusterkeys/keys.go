// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package clusterkeys creates and reads the keys of a cluster: the key of its certificate
// authority and the key of its registration nonces (docs/server-reference.md#keys).
package clusterkeys

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	"nstance.dev/operator/pkg/base/keys"
	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/storage"
)

// Names of the secrets. Both are an Ed25519 key as PKCS #8 in PEM.
const (
	authoritySecret = storage.AuthoritySecret
	nonceSecret     = storage.NonceSecret
)

// Secrets stores the keys. secrets.Store implements it.
type Secrets interface {
	// Get returns a secret. The error wraps storage.ErrNotFound if it does not exist.
	Get(ctx context.Context, name string) ([]byte, error)
	// Create stores a secret that must not exist. The error wraps
	// storage.ErrConflict if it exists.
	Create(ctx context.Context, name string, data []byte) error
}

// Keys are the keys of one cluster.
type Keys struct {
	// Authority issues all certificates of the cluster. It changes while the CA is replaced.
	Authority *pki.Authority
	// Nonce signs registration nonces.
	Nonce ed25519.PrivateKey
}

// In reports whether a content has one of the keys, as they are stored or in another form: in
// PEM, PKCS #8, or the 32 bytes that the key is derived from. Nobody but servers may get them.
func (k *Keys) In(content []byte) bool {
	for _, seed := range append(k.Authority.KeySeeds(), k.Nonce.Seed()) {
		if bytes.Contains(content, seed) {
			return true
		}
		for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
			if bytes.Contains(block.Bytes, seed) {
				return true
			}
		}
	}
	return false
}

// Digest returns a keyed digest of a content, which is the same on each server of the cluster. Who
// does not have the keys cannot find out the content by trying.
func (k *Keys) Digest(content []byte) string {
	mac := hmac.New(sha256.New, slices.Concat([]byte("digest of a file: "), k.Nonce.Seed()))
	mac.Write(content)
	return hex.EncodeToString(mac.Sum(nil))
}

// Load reads the keys. The error wraps storage.ErrNotFound until the leader of the
// cluster has created all of them.
func Load(ctx context.Context, store storage.Store, secrets Secrets) (*Keys, error) {
	authority, err := loadAuthority(ctx, store, secrets)
	if err != nil {
		return nil, err
	}
	nonceKey, err := read(ctx, secrets, nonceSecret)
	if err != nil {
		return nil, err
	}
	return &Keys{Authority: authority, Nonce: nonceKey}, nil
}

// Ensure creates missing keys and returns all. The leader of the cluster calls it, but
// concurrent calls are safe: each step creates an object that must not exist, and uses the
// existing object after a conflict. After a crash between the steps, the next call creates
// the rest.
func Ensure(ctx context.Context, store storage.Store, secrets Secrets, clusterID string) (*Keys, error) {
	// The private key is created first. The certificate is always created from the
	// stored key, so no trusted certificate belongs to a key that was not stored.
	if _, err := store.Get(ctx, storage.AuthoritiesKey); errors.Is(err, storage.ErrNotFound) {
		if err := ensureAuthorityKey(ctx, store, secrets); err != nil {
			return nil, err
		}
		if err := ensureCertificate(ctx, store, secrets, clusterID); err != nil {
			return nil, err
		}
	} else if err != nil {
		return nil, fmt.Errorf("read the authorities: %w", err)
	}
	if err := ensureKey(ctx, secrets, nonceSecret); err != nil {
		return nil, err
	}
	return Load(ctx, store, secrets)
}

// ensureAuthorityKey creates no new key if there is a certificate: its key was lost, and
// clients that trust the certificate would trust no server any more. The certificate is read
// first, because it is created after the key.
func ensureAuthorityKey(ctx context.Context, store storage.Store, secrets Secrets) error {
	_, certErr := store.Get(ctx, storage.AuthorityKey)
	if certErr != nil && !errors.Is(certErr, storage.ErrNotFound) {
		return fmt.Errorf("read the certificate of the authority: %w", certErr)
	}
	if certErr != nil {
		return ensureKey(ctx, secrets, authoritySecret)
	}
	if _, err := secrets.Get(ctx, authoritySecret); errors.Is(err, storage.ErrNotFound) {
		return fmt.Errorf("the key of the authority is lost: secret %s is missing while object %s exists; restore the secret, or delete the object and register all clients again",
			authoritySecret, storage.AuthorityKey)
	}
	return nil
}

func ensureCertificate(ctx context.Context, store storage.Store, secrets Secrets, clusterID string) error {
	_, err := store.Get(ctx, storage.AuthorityKey)
	if err == nil {
		return nil
	}
	if !errors.Is(err, storage.ErrNotFound) {
		return fmt.Errorf("read the certificate of the authority: %w", err)
	}
	key, err := read(ctx, secrets, authoritySecret)
	if err != nil {
		return err
	}
	authority, err := pki.NewAuthorityForKey(clusterID, key)
	if err != nil {
		return err
	}
	_, err = store.Create(ctx, storage.AuthorityKey, authority.CertificatePEM())
	if err != nil && !errors.Is(err, storage.ErrConflict) {
		return fmt.Errorf("store the certificate of the authority: %w", err)
	}
	return nil
}

// ensureKey creates a secret with a new key unless it exists.
func ensureKey(ctx context.Context, secrets Secrets, name string) error {
	_, err := secrets.Get(ctx, name)
	if err == nil {
		return nil
	}
	if !errors.Is(err, storage.ErrNotFound) {
		return fmt.Errorf("read secret %s: %w", name, err)
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("generate secret %s: %w", name, err)
	}
	data, err := keys.EncodePrivate(key)
	if err != nil {
		return fmt.Errorf("encode secret %s: %w", name, err)
	}
	if err := secrets.Create(ctx, name, data); err != nil && !errors.Is(err, storage.ErrConflict) {
		return fmt.Errorf("store secret %s: %w", name, err)
	}
	return nil
}

func read(ctx context.Context, secrets Secrets, name string) (ed25519.PrivateKey, error) {
	data, err := secrets.Get(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read secret %s: %w", name, err)
	}
	key, err := keys.ParsePrivate(data)
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", name, err)
	}
	return key, nil
}

// Import stores an authority that was created elsewhere as the authority of the cluster. If
// the cluster already has an authority, it is kept.
func Import(ctx context.Context, store storage.Store, secrets Secrets, authority *pki.Authority) error {
	key, err := authority.KeyPEM()
	if err != nil {
		return fmt.Errorf("import an authority: %w", err)
	}
	if err := secrets.Create(ctx, authoritySecret, key); err != nil && !errors.Is(err, storage.ErrConflict) {
		return fmt.Errorf("import an authority: %w", err)
	}
	if _, err := store.Create(ctx, storage.AuthorityKey, authority.CertificatePEM()); err != nil && !errors.Is(err, storage.ErrConflict) {
		return fmt.Errorf("import an authority: %w", err)
	}
	return nil
}
