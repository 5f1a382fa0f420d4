// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package file

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// lockName is the file in each folder that is locked to change the folder. No
	// key has a part that begins with a dot.
	lockName = ".lock"
	// lockRetryInterval is how often a file that another writer has locked is
	// tried. Writers lock it for much less, unless their process is paused.
	lockRetryInterval = time.Millisecond
)

// createFolder creates a folder and its parents. When it has returned they survive
// a power failure.
func (s *Store) createFolder(path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.durable[path] {
		return nil
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	// Also when the folder existed: a process may have created it and crashed
	// before the sync.
	for at := path; at != s.dir; at = filepath.Dir(at) {
		if err := syncFolder(filepath.Dir(at)); err != nil {
			return err
		}
	}
	s.durable[path] = true
	return nil
}

// locked calls change with the folder locked against other goroutines and
// processes. It returns the error of ctx if ctx is done before that.
func (s *Store) locked(ctx context.Context, folder string, change func() error) error {
	semaphore := s.semaphore(folder)
	select {
	case semaphore <- struct{}{}:
		defer func() { <-semaphore }()
	case <-ctx.Done():
		return ctx.Err()
	}
	// flock locks the open file, so each call opens the file again.
	file, err := os.OpenFile(filepath.Join(folder, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if err := lock(ctx, file); err != nil {
		return errors.Join(err, file.Close())
	}
	err = change()
	// Closing the file is not enough: a child process that is being started may
	// have it open for a moment longer.
	return errors.Join(err, flock(file, syscall.LOCK_UN), file.Close())
}

// semaphore returns the semaphore of a folder.
func (s *Store) semaphore(folder string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	semaphore, found := s.semaphores[folder]
	if !found {
		semaphore = make(chan struct{}, 1)
		s.semaphores[folder] = semaphore
	}
	return semaphore
}

// lock waits for the lock of file. It polls, because a blocking flock would not
// return when ctx is done.
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
