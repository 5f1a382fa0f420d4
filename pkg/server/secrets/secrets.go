// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package secrets keeps the secrets of a cluster in its object storage,
// encrypted with keys that are kept elsewhere.
package secrets

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"fmt"

	"nstance.dev/operator/pkg/server/storage"
)

// keySize is that of the keys, in bytes. With keys of another size AES-GCM would
// be another cipher than the other servers of the cluster use.
const keySize = 32

// Store reads and writes secrets. It is safe for use by several goroutines.
type Store struct {
	store storage.Store
	// ciphers are that of the current key and then those of the old ones.
	ciphers []cipher.AEAD
}

// New returns the secrets in a storage. They are written with key, and read with
// key or the first of oldKeys that fits. Each must have exactly 32 bytes.
func New(store storage.Store, key []byte, oldKeys ...[]byte) (*Store, error) {
	current, err := newCipher(key)
	if err != nil {
		return nil, fmt.Errorf("the key for secrets: %w", err)
	}
	s := &Store{store: store, ciphers: []cipher.AEAD{current}}
	for i, key := range oldKeys {
		old, err := newCipher(key)
		if err != nil {
			return nil, fmt.Errorf("the old key %d for secrets: %w", i, err)
		}
		s.ciphers = append(s.ciphers, old)
	}
	return s, nil
}

// newCipher returns AES-256-GCM. What it seals begins with 12 random bytes,
// followed by the ciphertext and its tag, as the server document says.
func newCipher(key []byte) (cipher.AEAD, error) {
	if err := checkSize(key); err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// Get returns a secret. The error wraps storage.ErrNotFound when there is none.
func (s *Store) Get(ctx context.Context, name string) ([]byte, error) {
	data, err := s.get(ctx, storage.SecretPrefix+name)
	if err != nil {
		return nil, fmt.Errorf("reading secret %s: %w", name, err)
	}
	return data, nil
}

func (s *Store) get(ctx context.Context, key string) ([]byte, error) {
	object, err := s.store.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	for _, c := range s.ciphers {
		// The name is no associated data, for the format has none. Whoever can
		// write to the storage can put one secret in the place of another.
		if data, err := c.Open(nil, nil, object.Data, nil); err == nil {
			return data, nil
		}
	}
	// Which of the two it is cannot be known.
	return nil, fmt.Errorf("the object %s is damaged, or encrypted with none of the %d keys configured", key, len(s.ciphers))
}

// Create stores a secret that must not exist, or else the error wraps
// storage.ErrConflict.
func (s *Store) Create(ctx context.Context, name string, data []byte) error {
	if _, err := s.store.Create(ctx, storage.SecretPrefix+name, s.ciphers[0].Seal(nil, nil, data, nil)); err != nil {
		return fmt.Errorf("storing secret %s: %w", name, err)
	}
	return nil
}
