// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"nstance.dev/operator/e2e/controlplane"
)

// FreezeUnlocked suspends a server at a moment when it has no lock of a folder of the
// storage bucket. With a lock, which takes microseconds, it would block the others for as
// long as it is suspended: that is a limit of a storage that is a folder.
func FreezeUnlocked(server *controlplane.Component, bucket string) error {
	for {
		if err := server.Freeze(); err != nil {
			return err
		}
		locked, err := anyLocked(bucket)
		if err != nil || !locked {
			return err
		}
		if err := server.Thaw(); err != nil {
			return err
		}
	}
}

// anyLocked reports whether any process has the lock of a folder below dir.
func anyLocked(dir string) (locked bool, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // The servers write meanwhile.
		}
		if err != nil || entry.Name() != ".lock" {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			locked, err = true, nil
		}
		return err
	})
	return locked, err
}
