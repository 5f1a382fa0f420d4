// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"nstance.dev/operator/pkg/server/storage"
)

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
	// The order of folders is not that of keys: "a-b" is before "a/b".
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

// entries returns the entries of a folder, or none if there is no folder. It locks
// the folder, because a file system may omit a file that is being replaced.
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
