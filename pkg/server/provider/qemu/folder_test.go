// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package qemu

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/provider/providertest"
)

// TestLockIsExclusive while others create and remove the folder.
func TestLockIsExclusive(t *testing.T) {
	folders := newFolders(t.TempDir(), "test", "a")
	f := folders.of(providertest.NewID(t))
	var running sync.WaitGroup
	for worker := range 8 {
		running.Go(func() {
			for locks := 0; locks < 50; {
				assert.NoError(t, f.create())
				lock, err := f.lock(syscall.LOCK_EX)
				if errors.Is(err, errLocked) || errors.Is(err, fs.ErrNotExist) {
					continue
				}
				if !assert.NoError(t, err) {
					return
				}
				locks++
				owner, err := os.OpenFile(f.file("owner"), os.O_CREATE|os.O_EXCL, 0o600)
				if assert.NoError(t, err, "another process has the lock too") {
					owner.Close()
					assert.NoError(t, os.Remove(owner.Name()))
				}
				if (worker+locks)%2 == 0 {
					assert.NoError(t, f.remove())
				}
				lock.Close()
			}
		})
	}
	running.Wait()
}

func TestListRemovesWhatIsLeftOfDeletedFolders(t *testing.T) {
	folders := newFolders(t.TempDir(), "test", "a")
	id := providertest.NewID(t)
	for _, name := range []string{id, id + deletedSuffix, "lost+found"} {
		require.NoError(t, os.MkdirAll(filepath.Join(folders.path, name, "folder"), 0o700))
	}
	list, err := folders.list()
	require.NoError(t, err)
	assert.Equal(t, []folder{folders.of(id)}, list)
	left, err := os.ReadDir(folders.path)
	require.NoError(t, err)
	require.Len(t, left, 2)
	assert.Equal(t, "lost+found", left[1].Name())
}

// TestListFailsWithoutItsFileSystem: what is not mounted is not deleted. A shard without
// machines has no folder.
func TestListFailsWithoutItsFileSystem(t *testing.T) {
	root := t.TempDir()
	folders := newFolders(root, "test", "a")
	list, err := folders.list()
	require.NoError(t, err)
	assert.Empty(t, list)
	require.NoError(t, os.MkdirAll(folders.of(providertest.NewID(t)).path, 0o700))
	require.NoError(t, os.Rename(root, root+".moved"))
	_, err = folders.list()
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, os.Rename(root+".moved", root))
	list, err = folders.list()
	require.NoError(t, err)
	assert.Len(t, list, 1)
	require.NoError(t, os.RemoveAll(folders.path))
	require.NoError(t, os.WriteFile(folders.path, nil, 0o600))
	_, err = folders.list()
	require.Error(t, err, "what cannot be read")
}
