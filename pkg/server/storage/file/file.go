// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package file stores objects as plain files, which administrators can read and
// edit: the object config/a.jsonc is the file config/a.jsonc below the folder of
// the storage.
//
// A write creates and syncs a temporary file and renames it, so that a crash at any time
// leaves either the complete old object or the complete new object. A write checks the
// version that it replaces with locks of the file and its folder, so that several processes
// can share a storage wherever flock works.
package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/storage"
)

// Store is a storage.Store in a folder.
type Store struct {
	dir string

	// mu guards the fields below.
	mu sync.Mutex
	// durable has the paths of the folders that are known to survive a power
	// failure.
	durable map[string]bool
	// locks are the locks of the folders that were changed or listed.
	locks map[string]*folderLock
}

var _ storage.Store = (*Store)(nil)

// Open opens the storage in folder dir. The folder must exist: creating it would
// hide a misspelled name or a disk that is not mounted. Open removes the temporary
// files of writers that crashed long ago.
func Open(dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open the storage: %w", err)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return nil, fmt.Errorf("open the storage: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("open the storage: %s is not a folder", dir)
	}
	if err := removeLeftovers(dir); err != nil {
		return nil, fmt.Errorf("open the storage in %s: %w", dir, err)
	}
	return &Store{dir: dir, durable: map[string]bool{}, locks: map[string]*folderLock{}}, nil
}

// Get implements storage.Store. It follows symbolic links.
func (s *Store) Get(ctx context.Context, key string) (storage.Object, error) {
	object, err := s.get(ctx, key)
	if err != nil {
		return storage.Object{}, fmt.Errorf("read %s: %w", key, err)
	}
	return object, nil
}

func (s *Store) get(ctx context.Context, key string) (storage.Object, error) {
	if err := storage.CheckCall(ctx, key); err != nil {
		return storage.Object{}, err
	}
	return readObject(s.path(key))
}

// Create implements storage.Store.
func (s *Store) Create(ctx context.Context, key string, data []byte) (string, error) {
	etag, err := s.write(ctx, key, data, exclusive, func(path string, rename func() error) error {
		_, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return rename()
		case err == nil:
			return storage.ErrConflict
		default:
			return err
		}
	})
	if err != nil {
		return "", fmt.Errorf("create %s: %w", key, err)
	}
	return etag, nil
}

// Replace implements storage.Store.
func (s *Store) Replace(ctx context.Context, key string, data []byte, etag string) (string, error) {
	newETag, err := s.write(ctx, key, data, shared, func(path string, rename func() error) error {
		return ifUnchanged(ctx, path, etag, rename)
	})
	if err != nil {
		return "", fmt.Errorf("replace %s: %w", key, err)
	}
	return newETag, nil
}

// write writes an object. change is called with the folder locked in a mode, with the path of
// the object, and with a function that renames the new file to it.
func (s *Store) write(ctx context.Context, key string, data []byte, mode lockMode, change func(path string, rename func() error) error) (string, error) {
	if err := storage.CheckCall(ctx, key); err != nil {
		return "", err
	}
	path := s.path(key)
	folder := filepath.Dir(path)
	if err := s.createFolder(folder); err != nil {
		return "", err
	}
	// Writing to the disk takes long, so it is done without the lock.
	temporary, err := writeTemporary(folder, data)
	if err != nil {
		return "", err
	}
	opened, err := s.locked(ctx, folder, mode, func() error {
		return change(path, func() error {
			// This is the last check: no code between it and the rename can block.
			if err := deadline.Check(ctx); err != nil {
				return err
			}
			return os.Rename(temporary, path)
		})
	})
	if err != nil {
		return "", errors.Join(err, os.Remove(temporary))
	}
	return digest(data), opened.Sync()
}

// Delete implements storage.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := s.delete(ctx, key); err != nil {
		return fmt.Errorf("delete %s: %w", key, err)
	}
	return nil
}

func (s *Store) delete(ctx context.Context, key string) error {
	if err := storage.CheckCall(ctx, key); err != nil {
		return err
	}
	path := s.path(key)
	folder := filepath.Dir(path)
	// The lock keeps the deletion from happening between the check and the rename
	// of a Replace, which would create the object again.
	opened, err := s.locked(ctx, folder, exclusive, func() error {
		if err := deadline.Check(ctx); err != nil {
			return err
		}
		if err := os.Remove(path); err != nil && !notFound(err) {
			return err
		}
		return nil
	})
	if notFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	// The folder is synced even if there was no file: the process that deleted it may have
	// crashed before syncing the folder.
	return opened.Sync()
}

// path returns the path of an object.
func (s *Store) path(key string) string {
	return filepath.Join(s.dir, filepath.FromSlash(key))
}

// List implements storage.Store. It reads the objects for their etags.
func (s *Store) List(ctx context.Context, prefix string) ([]storage.Info, error) {
	infos, err := s.list(ctx, prefix)
	if err != nil {
		return nil, fmt.Errorf("list %q: %w", prefix, err)
	}
	return infos, nil
}

func (s *Store) list(ctx context.Context, prefix string) ([]storage.Info, error) {
	if err := storage.CheckListCall(ctx, prefix); err != nil {
		return nil, err
	}
	keys, err := s.keys(ctx, prefix[:strings.LastIndex(prefix, "/")+1], prefix)
	if err != nil {
		return nil, err
	}
	// Folders and keys have different orders: "a-b" is before "a/b".
	slices.Sort(keys)
	infos := make([]storage.Info, 0, len(keys))
	for _, key := range keys {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		object, err := readObject(s.path(key))
		if errors.Is(err, storage.ErrNotFound) {
			continue // deleted in the meantime
		}
		if err != nil {
			return nil, err
		}
		infos = append(infos, storage.Info{Key: key, ETag: object.ETag})
	}
	return infos, nil
}

// keys returns the keys of the objects in and below a folder that begin with
// prefix. folder is empty or has a trailing slash.
func (s *Store) keys(ctx context.Context, folder, prefix string) ([]string, error) {
	entries, err := s.entries(ctx, folder)
	if err != nil {
		return nil, err
	}
	var keys []string
	for _, entry := range entries {
		key := folder + entry.Name()
		if storage.CheckKey(key) != nil {
			continue // hidden, or not written by a server
		}
		switch {
		case entry.IsDir():
			if !strings.HasPrefix(key+"/", prefix) {
				continue
			}
			below, err := s.keys(ctx, key+"/", prefix)
			if err != nil {
				return nil, err
			}
			keys = append(keys, below...)
		case entry.Type().IsRegular() || entry.Type()&fs.ModeSymlink != 0:
			if strings.HasPrefix(key, prefix) {
				keys = append(keys, key)
			}
		}
	}
	return keys, nil
}

// entries returns the entries of a folder, nil if it does not exist. It locks the folder,
// because a file system may omit a file that is being replaced.
func (s *Store) entries(ctx context.Context, folder string) ([]fs.DirEntry, error) {
	path := s.path(folder)
	var entries []fs.DirEntry
	_, err := s.locked(ctx, path, exclusive, func() error {
		var err error
		entries, err = os.ReadDir(path)
		return err
	})
	if notFound(err) {
		return nil, nil
	}
	return entries, err
}
