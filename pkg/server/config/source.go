// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Source is a configuration file as it was at one time.
type Source struct {
	// Path of the file.
	Path string
	// Data is its content.
	Data []byte
	// ETag is a digest of the content.
	ETag string
	// LastModified is when it was written.
	LastModified time.Time
}

// Read reads the file at path. A link is followed anew each time.
func Read(path string) (Source, error) {
	source, err := read(path)
	if err != nil {
		return Source{}, fmt.Errorf("reading the configuration: %w", err)
	}
	return source, nil
}

func read(path string) (Source, error) {
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
	return Source{Path: path, Data: data, ETag: hex.EncodeToString(sum[:]), LastModified: info.ModTime()}, nil
}

// Parse returns the configuration that the file holds, or an error that names
// the file and wraps an *InvalidError.
func (s Source) Parse() (*Config, error) {
	config, err := Parse(s.Data, filepath.Dir(s.Path))
	if err != nil {
		return nil, fmt.Errorf("configuration %s:\n%w", s.Path, err)
	}
	config.Source = s
	return config, nil
}
