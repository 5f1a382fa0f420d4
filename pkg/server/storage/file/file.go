// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package file keeps the objects of a storage as plain files, which people read
// and edit with their own tools: the object config/a.jsonc is the file
// config/a.jsonc below the folder of the storage.
//
// A write makes and syncs a temporary file and renames it, so a crash at any
// moment leaves the old object or the new one, whole. What a write replaces is
// looked at under a lock of the folder that the file is in, so several processes
// may share a storage wherever flock keeps them apart.
package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"nstance.dev/operator/pkg/server/storage"
)

// Store is a storage.Store in a folder.
type Store struct {
	dir string

	// mu guards what follows.
	mu sync.Mutex
	// made has the paths of the folders that exist for good.
	made map[string]bool
	// turns has a channel for each folder that was changed or listed. Who has put
	// something in may try the folder's lock: the goroutines of one process need
	// not poll for it.
	turns map[string]chan struct{}
}

var _ storage.Store = (*Store)(nil)

// Open opens the storage in folder dir. The folder must exist: if it were made,
// nobody would see that its name is misspelt or its disk not mounted. What
// writers left behind that crashed long ago is removed.
func Open(dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("opening the storage: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("opening the storage: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("opening the storage: %s is not a folder", dir)
	}
	if err := removeLeftovers(dir); err != nil {
		return nil, fmt.Errorf("opening the storage in %s: %w", dir, err)
	}
	return &Store{dir: dir, made: map[string]bool{}, turns: map[string]chan struct{}{}}, nil
}

// Get implements storage.Store. A link is followed.
func (s *Store) Get(ctx context.Context, key string) (storage.Object, error) {
	object, err := s.get(ctx, key)
	if err != nil {
		return storage.Object{}, fmt.Errorf("reading %s: %w", key, err)
	}
	return object, nil
}

func (s *Store) get(ctx context.Context, key string) (storage.Object, error) {
	if err := check(ctx, key); err != nil {
		return storage.Object{}, err
	}
	return readObject(s.path(key))
}

// Create implements storage.Store.
func (s *Store) Create(ctx context.Context, key string, data []byte) (string, error) {
	etag, err := s.write(ctx, key, data, func(path string) error {
		_, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err == nil:
			return storage.ErrConflict
		default:
			return err
		}
	})
	if err != nil {
		return "", fmt.Errorf("creating %s: %w", key, err)
	}
	return etag, nil
}

// Replace implements storage.Store.
func (s *Store) Replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	newETag, err := s.write(ctx, key, data, func(path string) error {
		object, err := readObject(path)
		if errors.Is(err, storage.ErrNotFound) || err == nil && object.ETag != etag {
			return storage.ErrConflict
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("replacing %s: %w", key, err)
	}
	return newETag, nil
}

// write puts data under key if allowed returns nil, which is called with the
// path of the object and sees what the write replaces.
func (s *Store) write(ctx context.Context, key string, data []byte, allowed func(path string) error) (string, error) {
	if err := check(ctx, key); err != nil {
		return "", err
	}
	path := s.path(key)
	folder := filepath.Dir(path)
	if err := s.makeFolder(folder); err != nil {
		return "", err
	}
	// The lock is for what takes microseconds, not for waiting for the disk.
	temporary, err := writeTemporary(folder, data)
	if err != nil {
		return "", err
	}
	err = s.locked(ctx, folder, func() error {
		if err := allowed(path); err != nil {
			return err
		}
		// The last look: nothing that can wait comes between it and the rename.
		if err := storage.Ended(ctx); err != nil {
			return err
		}
		return os.Rename(temporary, path)
	})
	if err != nil {
		return "", errors.Join(err, os.Remove(temporary))
	}
	return digest(data), syncFolder(folder)
}

// Delete implements storage.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.delete(ctx, key); err != nil {
		return fmt.Errorf("deleting %s: %w", key, err)
	}
	return nil
}

func (s *Store) delete(ctx context.Context, key string) error {
	if err := check(ctx, key); err != nil {
		return err
	}
	path := s.path(key)
	folder := filepath.Dir(path)
	// Between the look and the rename of a Replace, which would bring the object
	// back, nothing may be removed.
	err := s.locked(ctx, folder, func() error {
		if err := storage.Ended(ctx); err != nil {
			return err
		}
		if err := os.Remove(path); err != nil && !absent(err) {
			return err
		}
		return nil
	})
	if absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	// Also for a file that was gone: whoever removed it may have crashed before.
	return syncFolder(folder)
}

// check refuses a bad key and does nothing for a ctx that has ended.
func check(ctx context.Context, key string) error {
	if err := storage.CheckKey(key); err != nil {
		return err
	}
	return storage.Ended(ctx)
}

// path returns where the object is.
func (s *Store) path(key string) string {
	return filepath.Join(s.dir, filepath.FromSlash(key))
}
