// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"nstance.dev/operator/pkg/identifier"
)

// lockFolder makes folder, if need be, and locks it for as long as this process
// lives: a cache has one server. A server that finds a leader's lock under its
// own id can therefore know that it is one of a former life. The caller calls
// unlock when it is done.
func lockFolder(folder string) (unlock func(), err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("making the cache folder: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("locking the cache folder: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("cache folder %s is in use by another server", folder)
		}
		return nil, fmt.Errorf("locking cache folder %s: %w", folder, err)
	}
	// The lock goes with the open file.
	return func() { _ = file.Close() }, nil
}

// identify returns the id of the server, or else the one that the cache folder
// has. It makes one if need be. The caller has locked the folder.
func (s *Server) identify() (string, error) {
	if s.ID != "" {
		return s.ID, nil
	}
	path := filepath.Join(s.CacheDir, "id")
	data, err := os.ReadFile(path)
	if err == nil && identifier.Validate(string(data)) == nil {
		return string(data), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("reading the id of this server: %w", err)
	}
	id := strings.ToLower(rand.Text())
	// A file that a crash left half written is no id, and is made anew.
	if err := os.WriteFile(path, []byte(id), 0o600); err != nil {
		return "", fmt.Errorf("keeping the id of this server: %w", err)
	}
	return id, nil
}
