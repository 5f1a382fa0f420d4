// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nstance.dev/operator/e2e/controlplane"
)

// Start starts a component that was stopped or killed, also in a cleanup.
func Start(t testing.TB, component *controlplane.Component) {
	t.Helper()
	require.NoError(t, component.Start(context.WithoutCancel(t.Context())))
}

// startUnlessRunning is Start for a cleanup after a test that may have started
// the component again.
func startUnlessRunning(t testing.TB, component *controlplane.Component) {
	t.Helper()
	if _, running := component.PID(); !running {
		Start(t, component)
	}
}

// Stop stops a component until the end of the test, unless the test starts it
// again.
func Stop(t testing.TB, component *controlplane.Component) {
	t.Helper()
	require.NoError(t, component.Stop(t.Context()))
	t.Cleanup(func() { startUnlessRunning(t, component) })
}

// Kill kills a component until the end of the test, unless the test starts it
// again.
func Kill(t testing.TB, component *controlplane.Component) {
	t.Helper()
	require.NoError(t, component.Kill(t.Context()))
	t.Cleanup(func() { startUnlessRunning(t, component) })
}

// UntilExited waits until the process of a component has exited.
func UntilExited(t testing.TB, component *controlplane.Component) {
	t.Helper()
	Eventually(t, time.Minute, component.Name+" exits", func(context.Context) error {
		if pid, running := component.PID(); running {
			return fmt.Errorf("it runs as process %d", pid)
		}
		return nil
	})
}

// Freeze suspends a component until thaw is called, at the latest at the end of
// the test.
func Freeze(t testing.TB, component *controlplane.Component) (thaw func()) {
	t.Helper()
	frozen := true
	require.NoError(t, component.Freeze())
	thaw = func() {
		if !frozen {
			return
		}
		frozen = false
		assert.NoError(t, component.Thaw())
	}
	t.Cleanup(thaw)
	return thaw
}

// FreezeUnlocked suspends a server at a moment when it has no lock of a folder of the storage
// bucket. A suspended server would keep the lock, which a write has for microseconds, and block
// the other servers: a limitation of the storage in a folder.
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
			return nil // the servers write at the same time
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
