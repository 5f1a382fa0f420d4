// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

func open(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	require.NoError(t, err)
	return s
}

func create(t testing.TB, s *Store, key, data string) string {
	t.Helper()
	etag, err := s.Create(t.Context(), key, []byte(data))
	require.NoError(t, err)
	return etag
}

// files returns the paths below dir of all files, hidden ones too.
func files(t testing.TB, dir string) []string {
	t.Helper()
	var paths []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			path, err = filepath.Rel(dir, path)
			paths = append(paths, path)
		}
		return err
	})
	require.NoError(t, err)
	return paths
}

func TestConformance(t *testing.T) {
	dir := t.TempDir()
	storagetest.Conformance(t, func(t testing.TB) storage.Store { return open(t, dir) })
	for _, path := range files(t, dir) {
		if strings.HasPrefix(filepath.Base(path), temporaryPrefix) {
			t.Errorf("%s was left behind", path)
		}
	}
}

func TestConformanceWithPrefix(t *testing.T) {
	dir := t.TempDir()
	storagetest.Conformance(t, func(t testing.TB) storage.Store { return storage.WithPrefix(open(t, dir), "some/prefix") })
	create(t, open(t, dir), "outside", "data")
	for _, path := range files(t, dir) {
		if !strings.HasPrefix(path, "some/prefix/") && path != "outside" && path != lockName {
			t.Errorf("%s is not below the prefix", path)
		}
	}
}

func TestObjectsArePlainFiles(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	create(t, s, "config/a.jsonc", "{}")
	create(t, s, "instance/us-west-2a/default.x.json", "1")
	create(t, s, "ca.crt", "2")
	longest := strings.Repeat("x", 255)
	etag := create(t, s, longest, "3")
	if _, err := s.Replace(t.Context(), longest, []byte("3"), etag); err != nil {
		t.Error(err)
	}
	for path, want := range map[string]fs.FileMode{
		"config": fs.ModeDir | 0o700, "instance": fs.ModeDir | 0o700, "instance/us-west-2a": fs.ModeDir | 0o700,
		"config/a.jsonc": 0o600, "instance/us-west-2a/default.x.json": 0o600, "ca.crt": 0o600,
		"config/" + lockName: 0o600,
	} {
		info, err := os.Lstat(filepath.Join(dir, path))
		require.NoError(t, err)
		if info.Mode() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
	}

	// An administrator edits the file with an editor.
	path := filepath.Join(dir, "config", "a.jsonc")
	before, err := s.Get(t.Context(), "config/a.jsonc")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, []byte(`{"edited": true}`), 0o644))
	for _, name := range []string{".a.jsonc.swp", ".#a.jsonc"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config", name), nil, 0o644))
	}
	after, err := s.Get(t.Context(), "config/a.jsonc")
	require.NoError(t, err)
	if string(after.Data) != `{"edited": true}` || after.ETag == before.ETag {
		t.Errorf("after the edit the object is %q with etag %s, which was %s before", after.Data, after.ETag, before.ETag)
	}
	_, err = s.Replace(t.Context(), "config/a.jsonc", nil, before.ETag)
	if !errors.Is(err, storage.ErrConflict) {
		t.Errorf("got error %v for a replace that would undo the edit", err)
	}

	// A symbolic link is followed.
	elsewhere := filepath.Join(t.TempDir(), "b.jsonc")
	require.NoError(t, os.WriteFile(elsewhere, []byte("linked"), 0o644))
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(dir, "config", "b.jsonc")))
	infos, err := s.List(t.Context(), "")
	require.NoError(t, err)
	want := []storage.Info{
		{Key: "ca.crt", ETag: digest([]byte("2"))},
		{Key: "config/a.jsonc", ETag: after.ETag},
		{Key: "config/b.jsonc", ETag: digest([]byte("linked"))},
		{Key: "instance/us-west-2a/default.x.json", ETag: digest([]byte("1"))},
		{Key: longest, ETag: etag},
	}
	if !slices.Equal(infos, want) {
		t.Errorf("listed %v, want %v", infos, want)
	}
}

func TestOpenRejects(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{filepath.Join(dir, "missing"), file} {
		_, err := Open(path)
		if err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("got error %v, want one that names %s", err, path)
		}
	}
	if got := files(t, dir); !slices.Equal(got, []string{"file"}) {
		t.Errorf("the folder has %q now, want nothing new", got)
	}
}

func TestOpenRemovesLeftovers(t *testing.T) {
	dir := t.TempDir()
	create(t, open(t, dir), "a/b/object", "data")
	old := time.Now().Add(-2 * leftoverAge)
	for name, modified := range map[string]time.Time{
		temporaryPrefix + "old": old, "a/b/" + temporaryPrefix + "old": old,
		"a/b/" + temporaryPrefix + "new": time.Now(), "a/b/.hidden": old, "a/b/old": old,
	} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, nil, 0o600))
		require.NoError(t, os.Chtimes(path, modified, modified))
	}
	open(t, dir)
	want := []string{"a/b/.hidden", "a/b/" + lockName, "a/b/" + temporaryPrefix + "new", "a/b/object", "a/b/old"}
	if got := files(t, dir); !slices.Equal(got, want) {
		t.Errorf("there is %q now, want %q", got, want)
	}
}

// TestLockedByAnother locks the folder for longer than the writers wait.
func TestLockedByAnother(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	etag := create(t, s, "a/object", "data")
	unlock := lockFolder(t, filepath.Join(dir, "a"))

	cancelled, cancel := context.WithCancel(t.Context())
	results := make(chan error, 8)
	for range cap(results) {
		go func() {
			_, err := s.Replace(cancelled, "a/object", []byte("lost"), etag)
			results <- err
		}()
	}
	// Another folder is not affected.
	create(t, s, "b/object", "data")
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		temporary, err := filepath.Glob(filepath.Join(dir, "a", temporaryPrefix+"*"))
		return len(temporary) == cap(results), err
	})
	if err != nil {
		t.Fatalf("waiting until all have written their data: %v", err)
	}
	cancel()
	for range cap(results) {
		if err := <-results; !errors.Is(err, context.Canceled) {
			t.Errorf("got error %v, want that of the context", err)
		}
	}
	late, cancelLate := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancelLate()
	if err := s.Delete(late, "a/object"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want that of the context", err)
	}

	unlock()
	object, err := s.Get(t.Context(), "a/object")
	require.NoError(t, err)
	if string(object.Data) != "data" {
		t.Errorf("the object has data %q, want it unchanged", object.Data)
	}
	if _, err := s.Replace(t.Context(), "a/object", []byte("changed"), etag); err != nil {
		t.Error(err)
	}
	if got, want := files(t, dir), []string{"a/" + lockName, "a/object", "b/" + lockName, "b/object"}; !slices.Equal(got, want) {
		t.Errorf("there is %q, want %q", got, want)
	}
}

// TestLockFileIsReplaced replaces the lock file, as restoring a backup does, while the store
// has the former file open: from then on all processes lock the new file.
func TestLockFileIsReplaced(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	etag := create(t, s, "object", "data")
	path := filepath.Join(dir, lockName)
	require.NoError(t, os.Remove(path))
	etag, err := s.Replace(t.Context(), "object", []byte("without a lock file"), etag)
	require.NoError(t, err)

	// Renaming keeps the number of the former file from being given to the new one.
	require.NoError(t, os.Rename(path, path+".former"))
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	unlock := lockFolder(t, dir)
	late, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.Replace(late, "object", []byte("not locked"), etag); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v while another process has the new lock file locked, want that of the context", err)
	}
	unlock()
	if _, err := s.Replace(t.Context(), "object", []byte("changed"), etag); err != nil {
		t.Error(err)
	}
}

// lockFolder locks a folder until the test calls unlock.
func lockFolder(t testing.TB, folder string) (unlock func()) {
	t.Helper()
	file, err := os.OpenFile(filepath.Join(folder, lockName), os.O_RDWR, 0)
	require.NoError(t, err)
	require.NoError(t, lock(t.Context(), file, exclusive))
	return func() {
		assert.NoError(t, file.Close())
	}
}

// TestPausedBeforeRename lets a writer's deadline pass while it waits for the
// lock, before the timer of the context runs.
func TestPausedBeforeRename(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	etag := create(t, s, "object", "data")
	ctx := &pausedContext{Context: t.Context(), passed: make(chan struct{})}
	unlock := lockFolder(t, dir)
	result := make(chan error)
	go func() {
		_, err := s.Replace(ctx, "object", []byte("late"), etag)
		result <- err
	}()
	<-ctx.passed
	unlock()
	if err := <-result; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want %v", err, context.DeadlineExceeded)
	}
	if object, err := s.Get(t.Context(), "object"); err != nil || string(object.Data) != "data" {
		t.Errorf("the object has data %q (%v), want it unchanged", object.Data, err)
	}
}

// TestPausedBeforeDeleting lets the deadline of a deletion pass while it waits for the lock,
// before the timer of the context runs.
func TestPausedBeforeDeleting(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	create(t, s, "object", "data")
	ctx := &pausedContext{Context: t.Context(), passed: make(chan struct{})}
	unlock := lockFolder(t, dir)
	result := make(chan error)
	go func() { result <- s.Delete(ctx, "object") }()
	<-ctx.passed
	unlock()
	require.ErrorIs(t, <-result, context.DeadlineExceeded)
	_, err := s.Get(t.Context(), "object")
	assert.NoError(t, err)
}

// TestPausedWhileReplacing pauses a process while it replaces an object, as a signal may at
// any time. Other processes replace the other objects of the folder meanwhile, but not the
// same object.
func TestPausedWhileReplacing(t *testing.T) {
	dir := t.TempDir()
	paused, other := open(t, dir), open(t, dir)
	etag, otherETag := create(t, paused, "lease/a", "data"), create(t, other, "lease/b", "data")
	ctx := &blockedContext{Context: t.Context(), reached: make(chan struct{}), released: make(chan struct{})}
	result := make(chan error)
	go func() {
		_, err := paused.Replace(ctx, "lease/a", []byte("changed"), etag)
		result <- err
	}()
	<-ctx.reached

	soon, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := other.Replace(soon, "lease/b", []byte("changed"), otherETag)
	require.NoError(t, err)
	late, cancelLate := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancelLate()
	_, err = other.Replace(late, "lease/a", []byte("lost"), etag)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	close(ctx.released)
	require.NoError(t, <-result)
	_, err = other.Replace(t.Context(), "lease/a", []byte("lost"), etag)
	require.ErrorIs(t, err, storage.ErrConflict)
}

// blockedContext blocks the last check before a rename until it is released. The first check
// is before the object is written.
type blockedContext struct {
	context.Context
	checks            int
	reached, released chan struct{}
}

func (c *blockedContext) Deadline() (time.Time, bool) {
	if c.checks++; c.checks == 2 {
		close(c.reached)
		<-c.released
	}
	return time.Time{}, false
}

// pausedContext has a deadline that is in the future when it is read for the first
// time and in the past afterwards. As after a pause, Done is not closed.
type pausedContext struct {
	context.Context
	passed chan struct{}
}

func (c *pausedContext) Deadline() (time.Time, bool) {
	select {
	case <-c.passed:
		return time.Now().Add(-time.Second), true
	default:
		close(c.passed)
		return time.Now().Add(time.Hour), true
	}
}

// TestDeleteDuringReplaces deletes an object that another client replaces
// repeatedly: after Delete has returned, no replace creates the object again.
//
// It is not part of the conformance test. S3 guarantees this too, but the service
// that the tests use for S3 does not.
func TestDeleteDuringReplaces(t *testing.T) {
	const rounds = 50
	dir := t.TempDir()
	deleter, writer := open(t, dir), open(t, dir)
	for round := range rounds {
		key := fmt.Sprintf("object%d", round)
		etag := create(t, deleter, key, "")
		var deleted atomic.Bool
		begun := make(chan struct{})
		var group errgroup.Group
		group.Go(func() error {
			for n := 0; ; n++ {
				tooLate := deleted.Load()
				var err error
				etag, err = writer.Replace(t.Context(), key, fmt.Append(nil, n), etag)
				if n == 0 {
					close(begun)
				}
				switch {
				case errors.Is(err, storage.ErrConflict):
					return nil
				case err == nil && tooLate:
					return fmt.Errorf("replaced %s after it was deleted", key)
				case err != nil:
					return err
				}
			}
		})
		<-begun
		if err := deleter.Delete(t.Context(), key); err != nil {
			t.Error(err)
		}
		deleted.Store(true)
		if err := group.Wait(); err != nil {
			t.Error(err)
		}
		if _, err := deleter.Get(t.Context(), key); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("got error %v, want one that wraps %q", err, storage.ErrNotFound)
		}
	}
}
