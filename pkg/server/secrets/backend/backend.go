// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package backend opens the secrets that a configuration describes. It is the only package
// that knows all services.
package backend

import (
	"context"
	"errors"
	"fmt"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/secrets"
	"nstance.dev/operator/pkg/server/secrets/googlesecrets"
	"nstance.dev/operator/pkg/server/storage"
)

// Open returns the secrets of a cluster whose storage is store. It caches nothing. It looks
// up credentials only for the services that c names, and calls them only to read keys.
func Open(ctx context.Context, c config.Secrets, store storage.Store) (secrets.Store, error) {
	if c.Provider == config.SecretsInStorage {
		return openEncrypted(ctx, c, store)
	}
	return OpenWithoutKeys(ctx, c, store)
}

// OpenWithoutKeys is Open for callers that only list and delete secrets: it reads no keys.
func OpenWithoutKeys(ctx context.Context, c config.Secrets, store storage.Store) (secrets.Store, error) {
	switch c.Provider {
	case config.SecretsInStorage:
		return secrets.WithoutKeys(store), nil
	case config.SecretsInGoogle:
		return googlesecrets.New(googlesecrets.Options{Project: c.Project, Prefix: c.Prefix, Locations: c.Locations}), nil
	case config.SecretsInSecretsManager, config.SecretsInParameterStore:
		return openAWS(ctx, c)
	}
	return nil, fmt.Errorf("the provider of secrets %q is unknown", c.Provider)
}

func openEncrypted(ctx context.Context, c config.Secrets, store storage.Store) (secrets.Store, error) {
	key, err := ReadKey(ctx, c.EncryptionKey)
	if err != nil {
		return nil, fmt.Errorf("read the encryption key (cluster.secrets.encryption_key): %w", err)
	}
	old := make([][]byte, len(c.OldEncryptionKeys))
	for i, source := range c.OldEncryptionKeys {
		if old[i], err = ReadKey(ctx, source); err != nil {
			return nil, fmt.Errorf("read an old encryption key (cluster.secrets.old_encryption_keys[%d]): %w", i, err)
		}
	}
	return secrets.New(store, key, old...)
}

// ReadKey returns the key at source: 32 bytes or their standard base64. The error never
// contains a part of the value.
func ReadKey(ctx context.Context, source config.KeySource) ([]byte, error) {
	value, err := readService(ctx, source)
	if errors.Is(err, errNoService) {
		return secrets.ReadKey(source)
	}
	if err != nil {
		return nil, fmt.Errorf("read the key for secrets: %w", err)
	}
	key, err := secrets.ParseKey(value)
	if err != nil {
		return nil, fmt.Errorf("read the key for secrets from %s: %w", source, err)
	}
	return key, nil
}

var errNoService = errors.New("the key is not in a service")

// readService returns the value of a secret, or errNoService.
func readService(ctx context.Context, source config.KeySource) ([]byte, error) {
	switch {
	case source.GoogleSecret != "":
		return googlesecrets.Access(ctx, googlesecrets.Options{}, source.GoogleSecret)
	case source.KMS != nil || source.SecretsManager != "" || source.ParameterStore != "":
		return readAWS(ctx, source)
	}
	return nil, errNoService
}
