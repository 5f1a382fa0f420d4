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

// boundVersion is the first byte of an object whose ciphertext is bound to the name of the
// secret. An unbound object has no version: it begins with random bytes.
const boundVersion = 2

// Encrypted are the secrets in an object storage, encrypted with keys that are not in the
// storage. An object is bound to the name of its secret, so that a writer of the storage
// cannot make one secret out of another (docs/server-reference.md#keys).
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

// ErrUnbound means that an object has the format of earlier versions, which does not bind it to
// its name: it may be a copy of another secret.
var ErrUnbound = errors.New("it has the format of earlier versions, which does not bind it to its name")

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
	data, err := s.get(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read secret %s: %w", name, err)
	}
	return data, nil
}

func (s *Encrypted) get(ctx context.Context, name string) ([]byte, error) {
	object, err := s.store.Get(ctx, storage.SecretPrefix+name)
	if err != nil {
		return nil, err
	}
	opened, err := s.open(name, object.Data)
	if err != nil {
		return nil, err
	}
	if !opened.usable {
		return nil, fmt.Errorf("the object %s must be stored again, with nstance-admin secret set or secret reencrypt: %w", boundTo(name), ErrUnbound)
	}
	return opened.data, nil
}

// openedSecret is the content of an object.
type openedSecret struct {
	data []byte
	// usable reports whether the object is what the server would store under this name: it is
	// bound to the name, or it is one of the two secrets that need not be bound.
	usable bool
	// current reports whether the object is encrypted with the current key.
	current bool
}

// open decrypts the object of a secret.
func (s *Encrypted) open(name string, object []byte) (openedSecret, error) {
	for i, c := range s.ciphers {
		if bound, found := bytes.CutPrefix(object, []byte{boundVersion}); found {
			if data, err := c.Open(nil, nil, bound, boundTo(name)); err == nil {
				return openedSecret{data: data, usable: true, current: i == 0}, nil
			}
		}
		// An unbound object may begin with any byte.
		if data, err := c.Open(nil, nil, object, nil); err == nil {
			return openedSecret{data: data, usable: storage.IsUnboundSecret(name), current: i == 0}, nil
		}
	}
	// AES-GCM does not distinguish a damaged object, a copy of another object and a wrong key.
	return openedSecret{}, fmt.Errorf("the object %s is damaged, a copy of another secret, or encrypted with none of the %d keys configured", boundTo(name), len(s.ciphers))
}

// seal encrypts a secret with the current key.
func (s *Encrypted) seal(name string, data []byte) []byte {
	if storage.IsUnboundSecret(name) {
		// Servers of earlier versions, to which a cluster may be rolled back, cannot read a
		// bound object, and do not start without these two secrets.
		return s.ciphers[0].Seal(nil, nil, data, nil)
	}
	return s.ciphers[0].Seal([]byte{boundVersion}, nil, data, boundTo(name))
}

// boundTo returns the associated data of the object of a secret, which is its key.
func boundTo(name string) []byte { return []byte(storage.SecretPrefix + name) }

// Reencrypt encrypts a secret again with the current key, and binds the object to its name. It
// reports whether it has replaced the object, which it does not if the object is as it would
// store it. check gets the secret first, because nothing else shows that an unbound object is
// no copy of another secret; its error prevents the change.
func (s *Encrypted) Reencrypt(ctx context.Context, name string, check func(data []byte) error) (bool, error) {
	replaced, err := s.reencrypt(ctx, name, check)
	if err != nil {
		return false, fmt.Errorf("encrypt secret %s again: %w", name, err)
	}
	return replaced, nil
}

func (s *Encrypted) reencrypt(ctx context.Context, name string, check func(data []byte) error) (bool, error) {
	if len(s.ciphers) == 0 {
		return false, errNoKey
	}
	key := storage.SecretPrefix + name
	object, err := s.store.Get(ctx, key)
	if err != nil {
		return false, err
	}
	opened, err := s.open(name, object.Data)
	if err != nil {
		return false, err
	}
	if opened.usable && opened.current {
		return false, nil
	}
	if err := check(opened.data); err != nil {
		return false, err
	}
	_, err = s.store.Replace(ctx, key, s.seal(name, opened.data), object.ETag)
	return err == nil, err
}

// Create stores a secret that must not exist. The error wraps storage.ErrConflict
// if it exists.
func (s *Encrypted) Create(ctx context.Context, name string, data []byte) error {
	if len(s.ciphers) == 0 {
		return fmt.Errorf("store secret %s: %w", name, errNoKey)
	}
	if _, err := s.store.Create(ctx, storage.SecretPrefix+name, s.seal(name, data)); err != nil {
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
		_, err = s.store.Replace(ctx, storage.SecretPrefix+name, s.seal(name, data), object.ETag)
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
