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

	"nstance.dev/operator/pkg/server/storage"
)

// Source is the text of a configuration as it was at one time.
type Source struct {
	// Key is that of the object in the storage, or the path of the file.
	Key string
	// Data is its content.
	Data []byte
	// ETag is another whenever Data is.
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
		return Source{}, fmt.Errorf("reading the configuration of shard %s: %w", shard, err)
	}
	return Source{Key: key, Data: object.Data, ETag: object.ETag, LastModified: object.LastModified}, nil
}

// ReadFile reads a configuration that is in no storage.
func ReadFile(path string) (Source, error) {
	source, err := readFile(path)
	if err != nil {
		return Source{}, fmt.Errorf("reading the configuration: %w", err)
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

// Parse returns the configuration that the source holds, or an error that names
// the source and wraps an *InvalidError.
func (s Source) Parse() (*Config, error) {
	config, err := Parse(s.Data)
	if err != nil {
		return nil, s.refuse(err)
	}
	config.Source = s
	return config, nil
}

func (s Source) refuse(err error) error {
	return fmt.Errorf("configuration %s:\n%w", s.Key, err)
}

// Load reads and validates the configuration of a shard, which must be that of
// no other. The error is that of Read, or wraps an *InvalidError.
func Load(ctx context.Context, store storage.Store, shard string) (*Config, error) {
	source, err := Read(ctx, store, shard)
	if err != nil {
		return nil, err
	}
	config, err := source.Parse()
	if err != nil {
		return nil, err
	}
	if config.Shard.ID != shard {
		mistake := field.Invalid(field.NewPath("shard", "id"), config.Shard.ID, fmt.Sprintf("must be %q, the shard that this object is for", shard))
		return nil, source.refuse(&InvalidError{Mistakes: mistake})
	}
	return config, nil
}

// Validate tells whether a server could use the configuration in the file at
// path. It needs nothing but the file. The error wraps an *InvalidError unless
// the file cannot be read.
func Validate(path string) error {
	source, err := ReadFile(path)
	if err != nil {
		return err
	}
	_, err = source.Parse()
	return err
}
