// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package file

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"nstance.dev/operator/pkg/server/storage"
)

const (
	// temporaryPrefix is the prefix of the names of files that are being written.
	// No key has a part that begins with a dot.
	temporaryPrefix = ".tmp-"
	// leftoverAge is the age of a temporary file from which its writer is assumed
	// to have crashed. If the writer was paused for so long, its rename fails.
	leftoverAge = time.Hour
)

// readObject returns an error that wraps storage.ErrNotFound if there is no file.
// It needs no lock: a file that is replaced stays complete for its readers.
func readObject(path string) (storage.Object, error) {
	file, err := os.Open(path)
	if err != nil {
		return storage.Object{}, readError(err)
	}
	info, statErr := file.Stat()
	var data bytes.Buffer
	if statErr == nil {
		// With room for the whole file at once, reading needs two system calls.
		data.Grow(int(info.Size()) + bytes.MinRead)
	}
	_, readErr := data.ReadFrom(file)
	if err := errors.Join(statErr, readErr, file.Close()); err != nil {
		return storage.Object{}, readError(err)
	}
	return storage.Object{Data: data.Bytes(), ETag: digest(data.Bytes()), LastModified: info.ModTime()}, nil
}

// ifUnchanged calls change with the object at a path locked, if the object has an etag. It
// returns storage.ErrConflict if it has another etag, or does not exist.
func ifUnchanged(ctx context.Context, path, etag string, change func() error) error {
	for {
		// The file is opened for writing, because NFS requires that for an exclusive lock
		// (https://man7.org/linux/man-pages/man2/flock.2.html).
		file, err := os.OpenFile(path, os.O_RDWR, 0)
		if notFound(err) {
			return storage.ErrConflict
		}
		if err != nil {
			return err
		}
		replaced, err := ifCurrent(ctx, file, path, etag, change)
		if err := errors.Join(err, file.Close()); err != nil || !replaced {
			return err
		}
	}
}

// ifCurrent is ifUnchanged for the open file of the object. It reports whether another
// process has replaced the file before it was locked; then it has done nothing.
func ifCurrent(ctx context.Context, file *os.File, path, etag string, change func() error) (replaced bool, err error) {
	if err := lock(ctx, file, exclusive); err != nil {
		return false, err
	}
	// Closing the file is not enough: a child process that is being started may have it open
	// for a moment longer.
	defer func() { err = errors.Join(err, flock(file, syscall.LOCK_UN)) }()
	opened, err := file.Stat()
	if err != nil {
		return false, err
	}
	current, err := isAt(path, opened)
	if err != nil || !current {
		return err == nil, err
	}
	present, err := readETag(file)
	switch {
	case err != nil:
		return false, err
	case present != etag:
		return false, storage.ErrConflict
	default:
		return false, change()
	}
}

// readETag returns the etag of an open object.
func readETag(file *os.File) (string, error) {
	buffer, _ := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buffer)
	hash := sha256.New()
	if _, err := io.CopyBuffer(hash, struct{ io.Reader }{file}, buffer[:]); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}

// buffers are for reading: without them, each write would allocate the size of the replaced
// object.
var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

const bufferSize = 64 << 10

// readError returns storage.ErrNotFound for an error that means that the file does not exist.
func readError(err error) error {
	if notFound(err) {
		return storage.ErrNotFound
	}
	return err
}

// notFound reports whether err means that there is no file: nothing, a folder, or a
// file in place of a parent folder.
func notFound(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EISDIR) || errors.Is(err, syscall.ENOTDIR)
}

// digest returns the etag of an object. It also changes when an administrator edits
// the file.
func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// writeTemporary writes data to a new file in the folder. The content survives a
// power failure, the name may not.
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

// syncFolder makes the names in a folder survive a power failure.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// removeLeftovers removes the temporary files of crashed writers below dir.
func removeLeftovers(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(entry.Name(), temporaryPrefix) {
			err = removeLeftover(path, entry)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // another process has renamed or removed it
		case errors.Is(err, fs.ErrPermission) && path != dir:
			return fs.SkipDir // owned by another user, such as lost+found
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
