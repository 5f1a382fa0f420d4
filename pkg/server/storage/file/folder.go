// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package file

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// lockName is the file in each folder that is locked to change the folder. No
	// key has a part that begins with a dot.
	lockName = ".lock"
	// lockRetryInterval is how often a writer tries to lock a file that another writer has
	// locked. Writers hold the lock for much less, unless their process is paused.
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
	// An existing folder is synced too: a process may have created it and crashed before the
	// sync.
	for at := path; at != s.dir; at = filepath.Dir(at) {
		if err := syncFolder(filepath.Dir(at)); err != nil {
			return err
		}
	}
	s.durable[path] = true
	return nil
}

// folderLock is the lock of a folder. A goroutine takes the slot before it polls for the
// lock file, so that goroutines of one process do not poll against each other.
type folderLock struct {
	slot chan struct{}
	path string
	// file is the open lock file, nil before the first use. The slot guards it. flock
	// locks the open file (https://man7.org/linux/man-pages/man2/flock.2.html), so each
	// Store opens its own.
	file *os.File
	info os.FileInfo
	// folder is the open folder, nil as file is. As long as its lock file is the current lock
	// file, the folder is current too.
	folder *os.File
}

// lockMode is how a folder is locked against other processes.
type lockMode int

const (
	// exclusive excludes all others.
	exclusive lockMode = syscall.LOCK_EX
	// shared excludes only writers that lock it exclusively. It is for replacing an object,
	// which has its own lock: a process that is paused meanwhile must not stop the servers of
	// other shards, whose objects are in the same folder.
	shared lockMode = syscall.LOCK_SH
)

// locked calls change with the folder locked against other goroutines, and in a mode against
// other processes, and returns the open folder. It returns the error of ctx if ctx is done
// before that.
func (s *Store) locked(ctx context.Context, folder string, mode lockMode, change func() error) (opened *os.File, err error) {
	l := s.lockOf(folder)
	select {
	case l.slot <- struct{}{}:
		defer func() { <-l.slot }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := l.acquire(ctx, mode); err != nil {
		return nil, err
	}
	return l.folder, errors.Join(change(), flock(l.file, syscall.LOCK_UN))
}

// lockOf returns the lock of a folder.
func (s *Store) lockOf(folder string) *folderLock {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, found := s.locks[folder]
	if !found {
		l = &folderLock{slot: make(chan struct{}, 1), path: filepath.Join(folder, lockName)}
		s.locks[folder] = l
	}
	return l
}

// acquire locks the lock file. The caller has the slot.
func (l *folderLock) acquire(ctx context.Context, mode lockMode) error {
	for {
		if l.file == nil {
			if err := l.open(); err != nil {
				return err
			}
		}
		if err := lock(ctx, l.file, mode); err != nil {
			return err
		}
		current, err := isAt(l.path, l.info)
		if current {
			return nil
		}
		// Closing the file is not enough: a child process that is being started may
		// have it open for a moment longer.
		err = errors.Join(err, flock(l.file, syscall.LOCK_UN), l.file.Close(), l.folder.Close())
		l.file, l.folder = nil, nil
		if err != nil {
			return err
		}
	}
}

// open opens the lock file and its folder. The caller has the slot.
func (l *folderLock) open() error {
	file, err := os.OpenFile(l.path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	folder, err := os.Open(filepath.Dir(l.path))
	if err != nil {
		return errors.Join(err, file.Close())
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close(), folder.Close())
	}
	l.file, l.info, l.folder = file, info, folder
	return nil
}

// isAt reports whether an open file is still the file at a path.
func isAt(path string, opened os.FileInfo) (bool, error) {
	current, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && os.SameFile(opened, current), err
}

// lock waits for the lock of file. It polls, because a blocking flock would not
// return when ctx is done.
func lock(ctx context.Context, file *os.File, mode lockMode) error {
	for {
		err := flock(file, int(mode)|syscall.LOCK_NB)
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
