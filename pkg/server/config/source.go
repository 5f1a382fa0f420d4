// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/storage"
)

// Source is the text of a configuration at one time.
type Source struct {
	// Key is that of the object in the storage, or the path of the file.
	Key string
	// Data is its content.
	Data []byte
	// ETag changes whenever Data does.
	ETag string
	// LastModified is when it was written.
	LastModified time.Time
}

// Read reads the configuration of a shard. The error wraps storage.ErrNotFound
// when there is none.
func Read(ctx context.Context, store storage.Store, shard string) (Source, error) {
	key := storage.ConfigKey(shard)
	object, err := store.Get(ctx, key)
	if err != nil {
		return Source{}, fmt.Errorf("read the configuration of shard %s: %w", shard, err)
	}
	return Source{Key: key, Data: object.Data, ETag: object.ETag, LastModified: object.LastModified}, nil
}

// ReadFile reads a configuration from a file.
func ReadFile(path string) (Source, error) {
	source, err := readFile(path)
	if err != nil {
		return Source{}, fmt.Errorf("read the configuration: %w", err)
	}
	return source, nil
}

func readFile(path string) (Source, error) {
	file, err := os.Open(path)
	if err != nil {
		return Source{}, err
	}
	info, statErr := file.Stat()
	data, readErr := io.ReadAll(file)
	if err := errors.Join(statErr, readErr, file.Close()); err != nil {
		return Source{}, err
	}
	sum := sha256.Sum256(data)
	return Source{Key: path, Data: data, ETag: hex.EncodeToString(sum[:]), LastModified: info.ModTime()}, nil
}

// Parse returns the configuration of the source, or an error that names the
// source and wraps an *InvalidError.
func (s Source) Parse(providers provider.Registry) (*Config, error) {
	config, err := Parse(s.Data, providers)
	if err != nil {
		return nil, s.reject(err)
	}
	config.Source = s
	return config, nil
}

func (s Source) reject(err error) error {
	return fmt.Errorf("configuration %s:\n%w", s.Key, err)
}

// ParseFor is Parse, and rejects the configuration of any other shard.
func (s Source) ParseFor(shard string, providers provider.Registry) (*Config, error) {
	config, err := s.Parse(providers)
	if err == nil && config.Shard.ID != shard {
		mistake := field.Invalid(field.NewPath("shard", "id"), config.Shard.ID, fmt.Sprintf("must be %q", shard))
		return nil, s.reject(&InvalidError{Mistakes: mistake})
	}
	return config, err
}
