// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secrets

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/storage"
)

var _ Store = (*Encrypted)(nil)

// keySize is the size of an encryption key, in bytes. AES-GCM with another key size is
// another cipher, which other servers of the cluster could not read.
const keySize = 32

// Encrypted are the secrets in an object storage, encrypted with keys that are not in the
// storage.
type Encrypted struct {
	store storage.Store
	// ciphers are the ciphers of the current key and of the old keys, in this order. The list
	// is empty if secrets are only listed and deleted.
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

// errNoKey means that a secret should be read or written without a key.
var errNoKey = errors.New("there is no encryption key")

// newCipher returns AES-256-GCM. The sealed data consists of 12 random bytes, the
// ciphertext and its tag (docs/server-reference.md#keys).
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

// Get returns a secret. The error wraps storage.ErrNotFound if it does not exist.
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
	// AES-GCM does not distinguish a damaged object from a wrong key.
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

// Set stores a secret, and replaces an existing one. The error wraps storage.ErrConflict if
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

// Delete deletes a secret. The error wraps storage.ErrNotFound if it does not exist.
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

// encodedKeySize is the size of a key in base64.
var encodedKeySize = base64.StdEncoding.EncodedLen(keySize)

// ReadKey returns the key at source, an environment variable or a file: 32 raw bytes or
// their standard base64, which has 44 characters. The error never contains a part of the
// value. Package backend reads keys from services too.
func ReadKey(source config.KeySource) ([]byte, error) {
	switch {
	case source.Env != "":
		value, found := os.LookupEnv(source.Env)
		if !found {
			return nil, fmt.Errorf("read the key for secrets: environment variable %s is not set", source.Env)
		}
		key, err := decodeKey([]byte(value))
		if err != nil {
			return nil, fmt.Errorf("read the key for secrets from environment variable %s: %w", source.Env, err)
		}
		return key, nil
	case source.File != "":
		value, err := os.ReadFile(source.File)
		if err != nil {
			return nil, fmt.Errorf("read the key for secrets: %w", err)
		}
		key, err := ParseKey(value)
		if err != nil {
			return nil, fmt.Errorf("read the key for secrets from %s: %w", source.File, err)
		}
		return key, nil
	default:
		return nil, errors.New("read the key for secrets: neither an environment variable nor a file is named")
	}
}

// ParseKey parses the content of a file or of a secret. It removes a line break at the end if
// the size is right without it. The error never contains a part of the value.
func ParseKey(value []byte) ([]byte, error) { return decodeKey(trimLineBreak(value)) }

// trimLineBreak removes the line break at the end of a value. It does not change a
// value with the right size, since the last of 32 random bytes may look like a line
// break.
func trimLineBreak(value []byte) []byte {
	for _, lineBreak := range []string{"", "\n", "\r\n"} {
		key, found := bytes.CutSuffix(value, []byte(lineBreak))
		if found && (len(key) == keySize || len(key) == encodedKeySize) {
			return key
		}
	}
	return value
}

func decodeKey(value []byte) ([]byte, error) {
	switch len(value) {
	case keySize:
		return value, nil
	case encodedKeySize:
		key, err := base64.StdEncoding.Strict().DecodeString(string(value))
		if err != nil {
			return nil, fmt.Errorf("the %d characters are not base64: %w", len(value), err)
		}
		return key, checkSize(key)
	default:
		return nil, fmt.Errorf("it has %d bytes, must be %d bytes or their base64 of %d characters",
			len(value), keySize, encodedKeySize)
	}
}

func checkSize(key []byte) error {
	if len(key) != keySize {
		return fmt.Errorf("it has %d bytes, must be %d", len(key), keySize)
	}
	return nil
}
