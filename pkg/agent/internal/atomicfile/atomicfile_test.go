// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWriteReplacesContentAndMode(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o077))
	folder := t.TempDir()
	path := filepath.Join(folder, "a")
	for _, mode := range []fs.FileMode{0o600, 0o644, 0o640} {
		require.NoError(t, Write(path, []byte(mode.String()), mode))
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, mode.String(), string(content))
		info, err := os.Stat(path)
		require.NoError(t, err)
		assert.Equal(t, mode, info.Mode())
	}
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	assert.Len(t, entries, 1)
}

// A reader never sees a part of the content.
func TestWriteThatFailsLeavesTheFolderAsItWas(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "a")
	require.NoError(t, os.MkdirAll(filepath.Join(path, "in the way"), 0o700))
	require.Error(t, Write(path, []byte("x"), 0o600))
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	assert.Len(t, entries, 1)
	assert.Error(t, Write(filepath.Join(folder, "missing", "a"), nil, 0o600))
}

func TestCreateRefusesAFileThatExists(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	modified := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	require.NoError(t, Create(path, []byte("x"), 0o640, modified))
	require.ErrorIs(t, Create(path, []byte("y"), 0o640, modified), fs.ErrExist)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.True(t, info.ModTime().Equal(modified))
}

func TestRemoveRemovesAFileThatMayBeMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	for range 2 {
		require.NoError(t, Remove(path))
		assert.NoFileExists(t, path)
	}
	require.NoError(t, Remove(filepath.Join(path, "missing")), "in a folder that is missing too")
}

func TestRemoveReportsWhatItCannotRemove(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "a")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.Error(t, Remove(folder))
	assert.FileExists(t, path)
}

func TestWhoMayReadFilesMayListTheirFolder(t *testing.T) {
	for file, folder := range map[fs.FileMode]fs.FileMode{0o600: 0o700, 0o640: 0o750, 0o644: 0o755, 0o660: 0o770, 0o604: 0o705} {
		assert.Equal(t, folder, FolderMode(file), file.String())
	}
	path := filepath.Join(t.TempDir(), "parent", "a")
	for range 2 {
		require.NoError(t, MakeFolder(path, 0o640))
	}
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o750), info.Mode().Perm())
}
