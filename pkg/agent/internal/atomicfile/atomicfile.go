// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package atomicfile replaces files so that a crash leaves the old content or the new one.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// temporary is the prefix of the names of incomplete files.
const temporary = ".tmp-"

// Write replaces the content of a file with a rename, which is atomic
// (https://pubs.opengroup.org/onlinepubs/9699919799/functions/rename.html). When it returns
// nil, the new content is on disk.
func Write(path string, content []byte, mode fs.FileMode) error {
	folder := filepath.Dir(path)
	file, err := os.CreateTemp(folder, temporary)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	err = fill(file, content, mode)
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
		return fmt.Errorf("write %s: %w", path, err)
	}
	return SyncFolder(folder)
}

// Create writes a file that must not exist, and syncs it but not its folder. A modified
// time of zero means now.
func Create(path string, content []byte, mode fs.FileMode, modified time.Time) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode.Perm())
	if err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	if err := fill(file, content, mode); err != nil {
		return fmt.Errorf("create %s: %w", path, err)
	}
	if modified.IsZero() {
		return nil
	}
	if err := os.Chtimes(path, time.Time{}, modified); err != nil {
		return fmt.Errorf("set the time of %s: %w", path, err)
	}
	return nil
}

// fill writes, syncs and closes a file.
func fill(file *os.File, content []byte, mode fs.FileMode) error {
	_, err := file.Write(content)
	if err == nil {
		// The umask does not apply.
		err = file.Chmod(mode.Perm())
	}
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// Remove removes a file that may be missing. When it returns nil, the file does not come
// back after a crash.
func Remove(path string) error {
	if err := os.Remove(path); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	return SyncFolder(filepath.Dir(path))
}

// RemoveTemporary removes the incomplete files that crashes in Write left in a folder.
func RemoveTemporary(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("list %s: %w", folder, err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), temporary) && entry.Type().IsRegular() {
			if err := os.Remove(filepath.Join(folder, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// SyncFolder writes the entries of a folder to disk. Without it a crash may undo a rename
// (https://man7.org/linux/man-pages/man2/fsync.2.html).
func SyncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	if err := errors.Join(folder.Sync(), folder.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}

// FolderMode returns the mode of a folder for files of a mode: users who may read the files
// may list the folder.
func FolderMode(file fs.FileMode) fs.FileMode {
	mode := file.Perm() | 0o700
	return mode | mode>>2&0o111
}

// MakeFolder creates a folder for files of a mode unless it exists.
func MakeFolder(path string, file fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("create the parent of %s: %w", path, err)
	}
	err := os.Mkdir(path, FolderMode(file))
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return fmt.Errorf("create %s: %w", path, err)
	}
	// The umask does not apply.
	if err := os.Chmod(path, FolderMode(file)); err != nil {
		return fmt.Errorf("set the mode of %s: %w", path, err)
	}
	return nil
}
