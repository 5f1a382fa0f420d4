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

	"nstance.dev/operator/pkg/base/identifier"
)

// lockDir creates dir if it is missing, and locks it until this process exits: a
// cache belongs to one server. A server that finds its own id in a leader's lock
// therefore knows that it wrote the lock before a restart. The caller must call
// unlock when it is done.
func lockDir(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the cache folder: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the cache folder: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("cache folder %s is in use by another server", dir)
		}
		return nil, fmt.Errorf("lock cache folder %s: %w", dir, err)
	}
	// Closing the file releases the lock.
	return func() { _ = file.Close() }, nil
}

// identify returns the id of the server, or else the one in the cache folder. It
// creates one if there is none. The caller has locked the folder.
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
		return "", fmt.Errorf("read the id of this server: %w", err)
	}
	id := strings.ToLower(rand.Text())
	// A file that a crash left incomplete is no valid id, and is replaced.
	if err := os.WriteFile(path, []byte(id), 0o600); err != nil {
		return "", fmt.Errorf("store the id of this server: %w", err)
	}
	return id, nil
}
