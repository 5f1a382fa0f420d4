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

// lock makes sure that one program at a time runs a cluster in a folder. The
// kernel frees it when its holder ends, in whatever way.
type lock struct{ file *os.File }

// heldError says that another process has the lock.
type heldError struct {
	dir string
	pid int
}

func (e heldError) Error() string {
	return fmt.Sprintf("a dev cluster already runs in %s (process %d); stop it with Ctrl-C there or with: devcluster down", e.dir, e.pid)
}

// acquire takes the lock of a folder or returns a heldError.
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
			return nil, fmt.Errorf("locking %s: %w", path, err)
		}
		pid, err := holder(path)
		if err != nil {
			return nil, err
		}
		return nil, heldError{dir, pid}
	}
	if err := file.Truncate(0); err != nil {
		return nil, err
	}
	if _, err := fmt.Fprintln(file, os.Getpid()); err != nil {
		return nil, err
	}
	return &lock{file}, nil
}

// acquireWhenFree waits until nobody has the lock, and takes it.
func acquireWhenFree(ctx context.Context, dir string) (*lock, error) {
	var taken *lock
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) {
		var err error
		taken, err = acquire(dir)
		var held heldError
		if errors.As(err, &held) {
			return false, nil
		}
		return err == nil, err
	})
	return taken, err
}

// holder reads who wrote the lock file.
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
