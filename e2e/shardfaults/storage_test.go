// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardfaults

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

func storageFaults() []testcluster.Fault {
	return append([]testcluster.Fault{
		{Name: "the storage is missing", Happen: testcluster.During(func(t *testing.T) {
			defer unmount(t)()
			untilUnreachable(t)
		})},
		{Name: "the storage is empty, as the folder of a volume that is not mounted", Happen: testcluster.During(func(t *testing.T) {
			defer unmount(t)()
			require.NoError(t, os.Mkdir(env.Installation.Bucket(), 0o755))
			untilUnreachable(t)
		})},
		{Name: "a server cannot open files", Happen: testcluster.During(func(t *testing.T) {
			defer limitFiles(t, shardIDs[1], 8)()
			untilUnreachable(t)
		})},
		{Name: "the cache of a server is damaged", Happen: testcluster.During(func(t *testing.T) {
			server := env.ShardServer(shardIDs[0])
			require.NoError(t, server.Kill(t.Context()))
			damageFiles(t, cacheDir(shardIDs[0]))
			testcluster.Start(t, server)
		})},
	}, testcluster.InFull(
		testcluster.Fault{Name: "the cache of a server is deleted", Happen: testcluster.During(func(t *testing.T) {
			require.NoError(t, os.RemoveAll(cacheDir(shardIDs[2])))
			killAndStart(t, shardIDs[2])
		})},
	)...)
}

// unmount moves the storage of all shards away. Remount moves it back, and removes what was
// written meanwhile, as a mount hides what its folder contains.
func unmount(t *testing.T) (remount func()) {
	t.Helper()
	bucket := env.Installation.Bucket()
	volume := bucket + ".volume"
	require.NoError(t, os.Rename(bucket, volume))
	return func() {
		t.Helper()
		hidden, err := os.MkdirTemp(filepath.Dir(bucket), "hidden")
		require.NoError(t, err)
		if err := os.Rename(bucket, filepath.Join(hidden, "bucket")); err != nil {
			require.ErrorIs(t, err, fs.ErrNotExist)
		}
		require.NoError(t, os.Rename(volume, bucket))
	}
}

// limitFiles keeps a server from opening more files until restore is called.
func limitFiles(t *testing.T, shard string, limit uint64) (restore func()) {
	t.Helper()
	pid, running := env.ShardServer(shard).PID()
	require.True(t, running)
	var before unix.Rlimit
	require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &before))
	require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: before.Max}, nil))
	return func() {
		t.Helper()
		require.NoError(t, unix.Prlimit(pid, unix.RLIMIT_NOFILE, &before, nil))
	}
}

func cacheDir(shard string) string {
	return env.Installation.CacheDir(installation.Shard{ID: shard}.Component())
}

// damageFiles cuts every file below dir in half.
func damageFiles(t *testing.T, dir string) {
	t.Helper()
	damaged := 0
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		damaged++
		return os.Truncate(path, info.Size()/2)
	}))
	require.NotZero(t, damaged, "files in the cache")
}
