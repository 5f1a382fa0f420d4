// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package file

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"nstance.dev/operator/pkg/server/storage"
)

const (
	// temporaryPrefix begins the names of files that are being written. No key
	// has a part that begins with a dot.
	temporaryPrefix = ".tmp-"
	// leftoverAge is the age from which on a temporary file is not being written
	// any more. A writer that was paused for so long fails at the rename.
	leftoverAge = time.Hour
)

// readObject returns an error that wraps storage.ErrNotFound when there is no
// file. It needs no lock: a file that is replaced stays whole for its readers.
func readObject(path string) (storage.Object, error) {
	file, err := os.Open(path)
	if absent(err) {
		return storage.Object{}, storage.ErrNotFound
	}
	if err != nil {
		return storage.Object{}, err
	}
	info, statErr := file.Stat()
	data, readErr := io.ReadAll(file)
	err = errors.Join(statErr, readErr, file.Close())
	if absent(err) {
		return storage.Object{}, storage.ErrNotFound
	}
	if err != nil {
		return storage.Object{}, err
	}
	return storage.Object{Data: data, ETag: digest(data), LastModified: info.ModTime()}, nil
}

// absent tells whether err says that there is no file: nothing at all, a folder,
// or a file where a folder would have to be.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EISDIR) || errors.Is(err, syscall.ENOTDIR)
}

// digest returns the etag of an object. That of a file that was edited by hand
// changes with it.
func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// writeTemporary writes data to a new file in the folder. What it holds survives
// the loss of power, its name may not.
func writeTemporary(folder string, data []byte) (path string, err error) {
	file, err := os.CreateTemp(folder, temporaryPrefix)
	if err != nil {
		return "", err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return "", errors.Join(err, os.Remove(file.Name()))
	}
	return file.Name(), nil
}

// syncFolder makes the names in a folder survive the loss of power.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// removeLeftovers removes the temporary files below dir whose writers have
// crashed.
func removeLeftovers(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(entry.Name(), temporaryPrefix) {
			err = removeLeftover(path, entry)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // another process has renamed or removed it
		case errors.Is(err, fs.ErrPermission) && path != dir:
			return fs.SkipDir // of somebody else, such as lost+found
		default:
			return err
		}
	})
}

func removeLeftover(path string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil || time.Since(info.ModTime()) < leftoverAge {
		return err
	}
	return os.Remove(path)
}
