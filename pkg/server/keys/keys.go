// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package keys makes and reads the keys of a cluster: that of its certificate
// authority and that of its registration nonces (server document).
package keys

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"

	"nstance.dev/operator/pkg/server/pki"
	"nstance.dev/operator/pkg/server/storage"
)

// Names of the secrets. Both hold an Ed25519 key as PKCS #8 in PEM.
const (
	authoritySecret = "ca.key"
	nonceSecret     = "registration-nonce.key"
)

// Secrets are the objects that are encrypted in the storage.
type Secrets interface {
	// Get returns an error that wraps storage.ErrNotFound when there is no such
	// secret.
	Get(ctx context.Context, name string) ([]byte, error)
	// Create stores a secret that must not exist, or else the error wraps
	// storage.ErrConflict.
	Create(ctx context.Context, name string, data []byte) error
}

// Keys are the keys of one cluster. They never change.
type Keys struct {
	// Authority issues all certificates of the cluster.
	Authority *pki.Authority
	// Nonce signs registration nonces.
	Nonce ed25519.PrivateKey
}

// Load reads the keys. The error wraps storage.ErrNotFound as long as the
// cluster's leader has not made them all.
func Load(ctx context.Context, store storage.Store, secrets Secrets) (*Keys, error) {
	key, err := read(ctx, secrets, authoritySecret)
	if err != nil {
		return nil, err
	}
	object, err := store.Get(ctx, storage.AuthorityKey)
	if err != nil {
		return nil, fmt.Errorf("reading the certificate of the authority: %w", err)
	}
	authority, err := pki.LoadAuthority(object.Data, key)
	if err != nil {
		return nil, fmt.Errorf("object %s: %w", storage.AuthorityKey, err)
	}
	nonceKey, err := read(ctx, secrets, nonceSecret)
	if err != nil {
		return nil, err
	}
	return &Keys{Authority: authority, Nonce: nonceKey}, nil
}

// Ensure makes the keys that are missing and returns them all. It is for the
// leader of the cluster, yet several servers may do it at once: each step
// creates what must not exist, and who comes second takes what is there. A
// server that stops between the steps leaves the rest to the next Ensure.
func Ensure(ctx context.Context, store storage.Store, secrets Secrets, clusterID string) (*Keys, error) {
	// The private key comes first and is the only thing that is made from
	// nothing. The certificate is always made from the key as stored, and so no
	// certificate that anybody trusts belongs to a key that was given up.
	if err := ensureAuthorityKey(ctx, store, secrets); err != nil {
		return nil, err
	}
	if err := ensureCertificate(ctx, store, secrets, clusterID); err != nil {
		return nil, err
	}
	if err := ensureKey(ctx, secrets, nonceSecret); err != nil {
		return nil, err
	}
	return Load(ctx, store, secrets)
}

// ensureAuthorityKey refuses to make a new key when there is a certificate: it
// belongs to a key that was lost, and those who trust it would trust nobody any
// more. The certificate is looked at first, because it is made after the key.
func ensureAuthorityKey(ctx context.Context, store storage.Store, secrets Secrets) error {
	_, certErr := store.Get(ctx, storage.AuthorityKey)
	if certErr != nil && !errors.Is(certErr, storage.ErrNotFound) {
		return fmt.Errorf("looking for the certificate of the authority: %w", certErr)
	}
	if certErr != nil {
		return ensureKey(ctx, secrets, authoritySecret)
	}
	if _, err := secrets.Get(ctx, authoritySecret); errors.Is(err, storage.ErrNotFound) {
		return fmt.Errorf("the key of the authority is lost: secret %s is missing while object %s exists; put the secret back, or remove the object and register all clients anew",
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
		return fmt.Errorf("looking for the certificate of the authority: %w", err)
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
		return fmt.Errorf("storing the certificate of the authority: %w", err)
	}
	return nil
}

// ensureKey makes a secret that holds a new key, unless there is one.
func ensureKey(ctx context.Context, secrets Secrets, name string) error {
	_, err := secrets.Get(ctx, name)
	if err == nil {
		return nil
	}
	if !errors.Is(err, storage.ErrNotFound) {
		return fmt.Errorf("looking for secret %s: %w", name, err)
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return fmt.Errorf("generating secret %s: %w", name, err)
	}
	data, err := pki.EncodePrivateKey(key)
	if err != nil {
		return fmt.Errorf("encoding secret %s: %w", name, err)
	}
	if err := secrets.Create(ctx, name, data); err != nil && !errors.Is(err, storage.ErrConflict) {
		return fmt.Errorf("storing secret %s: %w", name, err)
	}
	return nil
}

func read(ctx context.Context, secrets Secrets, name string) (ed25519.PrivateKey, error) {
	data, err := secrets.Get(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("reading secret %s: %w", name, err)
	}
	key, err := pki.ParsePrivateKey(data)
	if err != nil {
		return nil, fmt.Errorf("secret %s: %w", name, err)
	}
	return key, nil
}
