// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package file

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const (
	// lockName is the file in each folder whose lock is held to change the
	// folder. No key has a part that begins with a dot.
	lockName = ".lock"
	// lockRetryInterval is how often a lock that another process holds is tried.
	// It is held for much less, unless the process is paused.
	lockRetryInterval = time.Millisecond
)

// folder is a folder of objects. One writer at a time changes what is in it.
type folder struct {
	path string
	// turn holds a value while a goroutine of this process has the lock, or
	// tries to get it.
	turn chan struct{}

	// mu guards made.
	mu sync.Mutex
	// made says that the folder exists and survives the loss of power.
	made bool
}

// make makes the folder and those between it and root, which exists.
func (f *folder) make(root string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.made {
		return nil
	}
	if err := os.MkdirAll(f.path, 0o700); err != nil {
		return err
	}
	// One that exists may be the work of a process that crashed before this.
	for at := f.path; at != root; at = filepath.Dir(at) {
		if err := syncFolder(filepath.Dir(at)); err != nil {
			return err
		}
	}
	f.made = true
	return nil
}

// locked calls change while no other writer of any process is in the folder. It
// returns the error of ctx when ctx ends before.
func (f *folder) locked(ctx context.Context, change func() error) error {
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	file, err := os.OpenFile(filepath.Join(f.path, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := lock(ctx, file); err != nil {
		return errors.Join(err, file.Close())
	}
	err = change()
	// To close alone is not enough: a child process that is being started may
	// hold the file for a moment more.
	return errors.Join(err, flock(file, syscall.LOCK_UN), file.Close())
}

// lock waits for the lock of file. A call that blocks would not end with ctx.
func lock(ctx context.Context, file *os.File) error {
	for {
		err := flock(file, syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		select {
		case <-time.After(lockRetryInterval):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func flock(file *os.File, how int) error {
	for {
		err := syscall.Flock(int(file.Fd()), how)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "flock", Path: file.Name(), Err: err}
		}
		return nil
	}
}
