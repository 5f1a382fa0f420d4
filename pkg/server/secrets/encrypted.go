// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secrets

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
	"strings"

	"nstance.dev/operator/pkg/server/storage"
)

var _ Store = (*Encrypted)(nil)

// keySize is the size of an encryption key, in bytes. AES-GCM with keys of another
// size is another cipher, which other servers of the cluster could not read.
const keySize = 32

// Encrypted are the secrets in an object storage, encrypted with keys that are not in the
// storage.
type Encrypted struct {
	store storage.Store
	// ciphers are those of the current key and of the old keys, in this order. There are none
	// if secrets are only listed and deleted.
	ciphers []cipher.AEAD
}

// New returns the secrets in a storage. They are encrypted with key, and decrypted
// with key or one of oldKeys. Each key must have exactly 32 bytes.
func New(store storage.Store, key []byte, oldKeys ...[]byte) (*Encrypted, error) {
	current, err := newCipher(key)
	if err != nil {
		return nil, fmt.Errorf("the key for secrets: %w", err)
	}
	s := &Encrypted{store: store, ciphers: []cipher.AEAD{current}}
	for i, key := range oldKeys {
		old, err := newCipher(key)
		if err != nil {
			return nil, fmt.Errorf("the old key %d for secrets: %w", i, err)
		}
		s.ciphers = append(s.ciphers, old)
	}
	return s, nil
}

// WithoutKeys returns the secrets in a storage, to list and delete them.
func WithoutKeys(store storage.Store) *Encrypted { return &Encrypted{store: store} }

// errNoKey means that a secret was to be read or written without a key.
var errNoKey = errors.New("there is no encryption key")

// newCipher returns AES-256-GCM. The sealed data consists of 12 random bytes, the
// ciphertext and its tag (docs/server.md#keys).
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

// Get returns a secret. The error wraps storage.ErrNotFound if there is none.
func (s *Encrypted) Get(ctx context.Context, name string) ([]byte, error) {
	data, err := s.get(ctx, storage.SecretPrefix+name)
	if err != nil {
		return nil, fmt.Errorf("read secret %s: %w", name, err)
	}
	return data, nil
}

func (s *Encrypted) get(ctx context.Context, key string) ([]byte, error) {
	object, err := s.store.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	for _, c := range s.ciphers {
		// The format has no associated data, so the name is not authenticated: a
		// writer of the storage could swap two secrets.
		if data, err := c.Open(nil, nil, object.Data, nil); err == nil {
			return data, nil
		}
	}
	// AES-GCM does not distinguish the two causes.
	return nil, fmt.Errorf("the object %s is damaged, or encrypted with none of the %d keys configured", key, len(s.ciphers))
}

// Create stores a secret that must not exist. The error wraps storage.ErrConflict
// if it exists.
func (s *Encrypted) Create(ctx context.Context, name string, data []byte) error {
	if len(s.ciphers) == 0 {
		return fmt.Errorf("store secret %s: %w", name, errNoKey)
	}
	if _, err := s.store.Create(ctx, storage.SecretPrefix+name, s.ciphers[0].Seal(nil, nil, data, nil)); err != nil {
		return fmt.Errorf("store secret %s: %w", name, err)
	}
	return nil
}

// Set stores a secret, and replaces one that exists. The error wraps storage.ErrConflict if
// another process has changed it in the meantime.
func (s *Encrypted) Set(ctx context.Context, name string, data []byte) error {
	if len(s.ciphers) == 0 {
		return fmt.Errorf("store secret %s: %w", name, errNoKey)
	}
	object, err := s.store.Get(ctx, storage.SecretPrefix+name)
	if errors.Is(err, storage.ErrNotFound) {
		return s.Create(ctx, name, data)
	}
	if err == nil {
		_, err = s.store.Replace(ctx, storage.SecretPrefix+name, s.ciphers[0].Seal(nil, nil, data, nil), object.ETag)
	}
	if err != nil {
		return fmt.Errorf("store secret %s: %w", name, err)
	}
	return nil
}

// List returns the names of all secrets, sorted.
func (s *Encrypted) List(ctx context.Context) ([]string, error) {
	objects, err := s.store.List(ctx, storage.SecretPrefix)
	if err != nil {
		return nil, fmt.Errorf("list the secrets: %w", err)
	}
	names := make([]string, 0, len(objects))
	for _, object := range objects {
		names = append(names, strings.TrimPrefix(object.Key, storage.SecretPrefix))
	}
	return names, nil
}

// Delete deletes a secret. The error wraps storage.ErrNotFound if there is none.
func (s *Encrypted) Delete(ctx context.Context, name string) error {
	_, err := s.store.Get(ctx, storage.SecretPrefix+name)
	if err == nil {
		err = s.store.Delete(ctx, storage.SecretPrefix+name)
	}
	if err != nil {
		return fmt.Errorf("delete secret %s: %w", name, err)
	}
	return nil
}
