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
	// lockName is the file in each folder whose lock is held to change the
	// folder. No key has a part that begins with a dot.
	lockName = ".lock"
	// lockRetryInterval is how often a lock that another writer holds is tried.
	// It is held for much less, unless its process is paused.
	lockRetryInterval = time.Millisecond
)

// makeFolder makes a folder and those above it. When it has returned they survive
// the loss of power.
func (s *Store) makeFolder(path string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made[path] {
		return nil
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	// One that exists may be the work of a process that crashed before this.
	for at := path; at != s.dir; at = filepath.Dir(at) {
		if err := syncFolder(filepath.Dir(at)); err != nil {
			return err
		}
	}
	s.made[path] = true
	return nil
}

// locked calls change while no other writer, of this process or of another, is
// in the folder. It returns the error of ctx when ctx ends before.
func (s *Store) locked(ctx context.Context, folder string, change func() error) error {
	turn := s.turn(folder)
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	// Each call has an open file of its own, and so a lock of its own.
	file, err := os.OpenFile(filepath.Join(folder, lockName), os.O_RDWR|os.O_CREATE, 0o600)
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

// turn returns the channel of a folder.
func (s *Store) turn(folder string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	turn, found := s.turns[folder]
	if !found {
		turn = make(chan struct{}, 1)
		s.turns[folder] = turn
	}
	return turn
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
