// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// lock ensures that one program at a time runs a cluster in a folder. The kernel
// releases it when the process exits.
type lock struct{ file *os.File }

// lockedError is the error when another process has the lock.
type lockedError struct {
	dir string
	pid int
}

func (e lockedError) Error() string {
	return fmt.Sprintf("a dev cluster already runs in %s (process %d); stop it with Ctrl-C there or with: devcluster down", e.dir, e.pid)
}

// acquire locks a folder or returns a lockedError.
func acquire(dir string) (*lock, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "lock")
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer file.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		pid, err := holder(path)
		if err != nil {
			return nil, err
		}
		return nil, lockedError{dir, pid}
	}
	if err := file.Truncate(0); err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintln(file, os.Getpid()); err != nil {
		return nil, err
	}
	return &lock{file}, nil
}

// acquireWhenFree waits until the lock is free, and acquires it.
func acquireWhenFree(ctx context.Context, dir string) (*lock, error) {
	var acquired *lock
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) {
		var err error
		acquired, err = acquire(dir)
		var locked lockedError
		if errors.As(err, &locked) {
			return false, nil
		}
		return err == nil, err
	})
	return acquired, err
}

// holder reads the process id in the lock file.
func holder(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("%s is locked by a process that did not write its id: %w", path, err)
	}
	return pid, nil
}

func (l *lock) release() { _ = l.file.Close() }
