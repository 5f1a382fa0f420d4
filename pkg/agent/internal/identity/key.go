// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package identity

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"nstance.dev/operator/pkg/agent/internal/atomicfile"
	"nstance.dev/operator/pkg/base/keys"
)

// Key returns the key of the instance. The first call creates it. It is on disk when Key
// returns, so that a registration whose response is lost can be repeated with the same key.
func (i *Identity) Key() (ed25519.PrivateKey, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	key, err := i.ensureKey(keyFile)
	if err != nil {
		return nil, err
	}
	return key, i.writePublic(key)
}

// NextKey returns the key that replaces the key of the instance with the next certificate
// (SetCertificate). The first call after a replacement creates it. It is on disk when NextKey
// returns: a server may have issued a certificate for it, although the response was lost.
func (i *Identity) NextKey() (ed25519.PrivateKey, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.ensureKey(nextKeyFile)
}

// finishReplacement makes the next key the key of the instance if the certificate is for it. The
// certificate is stored first: until then a crash leaves the certificate and the key before, and
// from then on the next key is used (keyOf).
func (i *Identity) finishReplacement() error {
	certPEM, err := i.read(certificateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	next, err := i.readKey(nextKeyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !isFor(certPEM, next) {
		return nil // the certificate is for the present key, or SetCertificate did not write it
	}
	// The rename is last, because it ends the replacement.
	if err := i.writePublic(next); err != nil {
		return err
	}
	if err := os.Rename(i.path(nextKeyFile), i.path(keyFile)); err != nil {
		return fmt.Errorf("replace the key of the instance: %w", err)
	}
	return atomicfile.SyncFolder(i.folder)
}

// keyOf returns the key of a certificate: the key of the instance, or its next key.
func (i *Identity) keyOf(public any) (ed25519.PrivateKey, error) {
	key, err := i.readKey(keyFile)
	if err != nil {
		return nil, err
	}
	if key.Public().(ed25519.PublicKey).Equal(public) {
		return key, nil
	}
	next, err := i.readKey(nextKeyFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err == nil && next.Public().(ed25519.PublicKey).Equal(public) {
		return next, nil
	}
	return nil, errors.New("it is not for the key of the instance")
}

// ensureKey returns the key in a file. It creates a missing key.
func (i *Identity) ensureKey(name string) (ed25519.PrivateKey, error) {
	key, err := i.readKey(name)
	if errors.Is(err, fs.ErrNotExist) {
		return i.createKey(name)
	}
	return key, err
}

func (i *Identity) readKey(name string) (ed25519.PrivateKey, error) {
	data, err := i.read(name)
	if err != nil {
		return nil, err
	}
	key, err := keys.ParsePrivate(data)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", i.path(name), err)
	}
	return key, nil
}

func (i *Identity) createKey(name string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create the key of the instance: %w", err)
	}
	data, err := keys.EncodePrivate(key)
	if err != nil {
		return nil, fmt.Errorf("encode the key of the instance: %w", err)
	}
	return key, i.write(name, data)
}

// writePublic writes the public part of the key of the instance, unless it is written.
func (i *Identity) writePublic(key ed25519.PrivateKey) error {
	public, err := keys.EncodePublic(key.Public().(ed25519.PublicKey))
	if err != nil {
		return err
	}
	if present, err := i.read(publicKeyFile); err == nil && string(present) == string(public) {
		return nil
	}
	return i.write(publicKeyFile, public)
}

// isFor reports whether a certificate, PEM, is for a key.
func isFor(certPEM []byte, key ed25519.PrivateKey) bool {
	leaf, _, err := decode(certPEM)
	return err == nil && key.Public().(ed25519.PublicKey).Equal(leaf.PublicKey)
}
