// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardfaults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

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
	}, testcluster.OnlyInFull(
		testcluster.Fault{Name: "the cache of a server is deleted", Happen: testcluster.During(func(t *testing.T) {
			require.NoError(t, os.RemoveAll(cacheDir(shardIDs[2])))
			killAndStart(t, shardIDs[2])
		})},
	)...)
}

// unmount moves the storage of all shards away. Remount moves it back, and removes the files that
// were written in between, as a mount hides the content of its folder.
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

// fullFaults are file systems without space. They are real, of a few MiB. For a user who may not
// mount file systems, these faults are skipped.
func fullFaults() []testcluster.Fault {
	return []testcluster.Fault{
		{Name: "the file system of the storage is full (needs the right to mount)", Happen: fullStorage},
		{Name: "the file system of the cache of a server is full (needs the right to mount)", Happen: fullCache},
	}
}

// fullStorage is a storage that accepts no write. The servers stop serving, because they
// cannot renew their locks.
func fullStorage(t *testing.T, scaleUp testcluster.ScaleUp) {
	requireMounting(t)
	bucket := env.Installation.Bucket()
	var logs []func() []byte
	for _, shard := range shardIDs {
		logs = append(logs, logSince(t, env.ShardServer(shard).LogPath()))
	}
	defer whileServersAreSuspended(t, func() func() { return mountCopy(t, bucket) })()
	release := fill(t, bucket)
	scaleUp.Begin(t)
	untilUnreachable(t)
	for i, shard := range shardIDs {
		testcluster.Eventually(t, time.Minute, "the server of "+shard+" reports it", func(ctx context.Context) error {
			if !bytes.Contains(logs[i](), []byte("no space left on device")) {
				return errors.New("its log does not name the reason")
			}
			return unhealthy(ctx, env.Installation.ShardURL(shard)+"/health")
		})
	}
	release()
	scaleUp.UntilShardsRun(t)
}

// fullCache is a server that cannot write its cache, also after a restart. It continues
// without it.
func fullCache(t *testing.T, scaleUp testcluster.ScaleUp) {
	requireMounting(t)
	shard := shardIDs[1]
	server, dir := env.ShardServer(shard), cacheDir(shard)
	require.NoError(t, server.Kill(t.Context()))
	unmount := mountCopy(t, dir)
	defer func() {
		require.NoError(t, server.Kill(t.Context()))
		unmount()
		testcluster.Start(t, server)
	}()
	fill(t, dir)
	log := logSince(t, server.LogPath())
	testcluster.Start(t, server)
	scaleUp.Begin(t)
	scaleUp.UntilShardsRun(t)
	require.Contains(t, string(log()), "full", "the log of the server")
}

// whileServersAreSuspended calls do while no server writes, and the result in the same way.
func whileServersAreSuspended(t *testing.T, do func() (undo func())) (undo func()) {
	t.Helper()
	suspended := func(do func()) {
		t.Helper()
		for _, shard := range shardIDs {
			server := env.ShardServer(shard)
			require.NoError(t, testcluster.FreezeUnlocked(server, env.Installation.Bucket()))
			defer func() { require.NoError(t, server.Thaw()) }()
		}
		do()
	}
	var undoDo func()
	suspended(func() { undoDo = do() })
	return func() {
		t.Helper()
		suspended(undoDo)
	}
}

// requireMounting skips the test of a user who may not mount a file system.
func requireMounting(t *testing.T) {
	t.Helper()
	folder := t.TempDir()
	err := mount(folder)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		t.Skip("mounting a file system needs more rights, such as those of root")
	}
	require.NoError(t, err)
	require.NoError(t, unix.Unmount(folder, 0))
}

func mount(folder string) error { return unix.Mount("tmpfs", folder, "tmpfs", 0, "size=16m,mode=0755") }

// mountCopy mounts a small file system on a folder, with the content of the folder. unmount
// copies the content back.
func mountCopy(t *testing.T, folder string) (unmount func()) {
	t.Helper()
	content := folder + ".content"
	require.NoError(t, os.CopyFS(content, os.DirFS(folder)))
	require.NoError(t, mount(folder))
	copyAll(t, content, folder)
	return func() {
		t.Helper()
		copyAll(t, folder, content)
		// Files that a server has open stay usable until they are closed
		// (https://man7.org/linux/man-pages/man2/umount.2.html).
		require.NoError(t, unix.Unmount(folder, unix.MNT_DETACH))
		copyAll(t, content, folder)
		require.NoError(t, os.RemoveAll(content))
	}
}

// copyAll replaces the content of folder to by the content of folder from.
func copyAll(t *testing.T, from, to string) {
	t.Helper()
	entries, err := os.ReadDir(to)
	require.NoError(t, err)
	for _, entry := range entries {
		require.NoError(t, os.RemoveAll(filepath.Join(to, entry.Name())))
	}
	require.NoError(t, os.CopyFS(to, os.DirFS(from)))
}

// fill uses up the space of the file system of a folder. release frees it.
func fill(t *testing.T, folder string) (release func()) {
	t.Helper()
	path := filepath.Join(folder, "filler")
	file, err := os.Create(path)
	require.NoError(t, err)
	page := make([]byte, os.Getpagesize())
	for err == nil {
		_, err = file.Write(page)
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NoError(t, file.Close())
	return func() {
		t.Helper()
		require.NoError(t, os.Remove(path))
	}
}

// logSince returns what a component has logged since the call.
func logSince(t *testing.T, path string) func() []byte {
	t.Helper()
	read := func() []byte {
		t.Helper()
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		return data
	}
	begin := len(read())
	return func() []byte { return read()[begin:] }
}

// unhealthy succeeds when a probe of health fails.
func unhealthy(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusServiceUnavailable {
		return fmt.Errorf("GET %s: %s", url, response.Status)
	}
	return nil
}
