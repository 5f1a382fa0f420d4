// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package storagetest has the conformance test that every storage.Store passes.
package storagetest

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"nstance.dev/operator/pkg/server/storage"
)

// Conformance tests the requirements of storage.Store. Each call of open returns
// another client of the same storage, as another process would. The storage must
// be empty.
func Conformance(t *testing.T, open func(t testing.TB) storage.Store) {
	// The names of the tests are also the prefixes of their keys.
	t.Run("round-trip", func(t *testing.T) { testRoundTrip(t, open) })
	t.Run("etag", func(t *testing.T) { testETag(t, open(t)) })
	t.Run("changed", func(t *testing.T) { testChanged(t, open) })
	t.Run("not-found", func(t *testing.T) { testNotFound(t, open(t)) })
	t.Run("conflict", func(t *testing.T) { testConflict(t, open(t)) })
	t.Run("concurrent-creates", func(t *testing.T) { testConcurrentCreates(t, open) })
	t.Run("concurrent-counters", func(t *testing.T) { testConcurrentCounters(t, open) })
	t.Run("delete", func(t *testing.T) { testDelete(t, open(t)) })
	t.Run("list", func(t *testing.T) { testList(t, open(t)) })
	t.Run("list-many", func(t *testing.T) { testListMany(t, open) })
	t.Run("list-while-writing", func(t *testing.T) { testListWhileWriting(t, open) })
	t.Run("unusual-keys", func(t *testing.T) { testUnusualKeys(t, open) })
	t.Run("bad-keys", func(t *testing.T) { testBadKeys(t, open(t)) })
	t.Run("done-context", func(t *testing.T) { testDoneContext(t, open(t)) })
}

// mustCreate returns the etag.
func mustCreate(t testing.TB, store storage.Store, key, data string) string {
	t.Helper()
	etag, err := store.Create(t.Context(), key, []byte(data))
	require.NoError(t, err)
	return etag
}

func mustReplace(t testing.TB, store storage.Store, key, data, etag string) string {
	t.Helper()
	etag, err := store.Replace(t.Context(), key, []byte(data), etag)
	require.NoError(t, err)
	return etag
}

func mustGet(t testing.TB, store storage.Store, key string) storage.Object {
	t.Helper()
	object, err := store.Get(t.Context(), key)
	require.NoError(t, err)
	return object
}

// wantObject reads an object and compares its data and etag.
func wantObject(t testing.TB, store storage.Store, key, data, etag string) {
	t.Helper()
	object := mustGet(t, store, key)
	if string(object.Data) != data {
		t.Errorf("%s has data %.40q, want %.40q", key, object.Data, data)
	}
	assert.Equal(t, etag, object.ETag, "the etag of %s, want that of the write", key)
}

// wantError checks that err wraps want and names the key.
func wantError(t testing.TB, err, want error, key string) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got error %v, want one that wraps %q", err, want)
	} else if !strings.Contains(err.Error(), key) {
		t.Errorf("got error %v, want one with the key %q", err, key)
	}
}

func testRoundTrip(t *testing.T, open func(t testing.TB) storage.Store) {
	binary := make([]byte, 5<<20)
	for i := range binary {
		binary[i] = byte(i * i >> 3)
	}
	contents := map[string][]byte{
		"round-trip/empty":  {},
		"round-trip/text":   []byte("{\n\t\"a\": \"ü\", // comment\n}\r\n"),
		"round-trip/binary": {0, 0xff, '\n', 0, 0x80},
		"round-trip/5MiB":   binary,
	}
	writer, reader := open(t), open(t)
	for key, data := range contents {
		before := time.Now()
		etag, err := writer.Create(t.Context(), key, data)
		require.NoError(t, err)
		object := mustGet(t, reader, key)
		if !bytes.Equal(object.Data, data) {
			t.Errorf("%s: read %d bytes that are not the %d written", key, len(object.Data), len(data))
		}
		if object.ETag != etag || etag == "" {
			t.Errorf("%s: has etag %q, Create returned %q", key, object.ETag, etag)
		}
		// Some storages have times in whole seconds.
		if age := object.LastModified.Sub(before); age < -2*time.Second || age > time.Minute {
			t.Errorf("%s: written at %v, but LastModified is %v", key, before, object.LastModified)
		}
	}
	// An object of another client can be replaced.
	for key := range contents {
		etag := mustReplace(t, reader, key, "changed", mustGet(t, reader, key).ETag)
		wantObject(t, writer, key, "changed", etag)
	}
}

func testETag(t *testing.T, store storage.Store) {
	const key = "etag/object"
	etags := map[string]bool{}
	etag := mustCreate(t, store, key, "0")
	for _, data := range []string{"", "1", "2", "22", "2 ", strings.Repeat("2", 1<<20)} {
		etags[etag] = true
		// Reading, and writing another object, do not change it.
		wantObject(t, store, key, string(mustGet(t, store, key).Data), etag)
		mustCreate(t, store, "etag/other"+etag[len(etag)-8:], data)
		infos, err := store.List(t.Context(), key)
		require.NoError(t, err)
		if diff := cmp.Diff([]storage.Info{{Key: key, ETag: etag}}, infos); diff != "" {
			t.Errorf("List and the write return different etags (-written +listed):\n%s", diff)
		}
		etag = mustReplace(t, store, key, data, etag)
		if etags[etag] {
			t.Errorf("%.10q has the etag of other data, %s", data, etag)
		}
	}
}

// testChanged reads an object only if another client has changed it.
func testChanged(t *testing.T, open func(t testing.TB) storage.Store) {
	const key, missing = "changed/object", "changed/missing"
	reader, writer := open(t), open(t)
	get := func(etag string) (storage.Object, error) { return storage.GetChanged(t.Context(), reader, key, etag) }
	first := mustCreate(t, writer, key, "first")
	for range 2 {
		_, err := get(first)
		wantError(t, err, storage.ErrUnchanged, key)
	}
	second := mustReplace(t, writer, key, "second", first)
	for _, etag := range []string{first, "", "something else"} {
		object, err := get(etag)
		require.NoError(t, err, "with etag %q", etag)
		assert.Equal(t, "second", string(object.Data))
		assert.Equal(t, second, object.ETag)
	}
	_, err := get(second)
	wantError(t, err, storage.ErrUnchanged, key)
	require.NoError(t, writer.Delete(t.Context(), key))
	_, err = get(second)
	wantError(t, err, storage.ErrNotFound, key)
	_, err = storage.GetChanged(t.Context(), reader, missing, second)
	wantError(t, err, storage.ErrNotFound, missing)
}

func testNotFound(t *testing.T, store storage.Store) {
	mustCreate(t, store, "not-found/folder/object", "data")
	for _, key := range []string{"not-found/nothing", "not-found/no/folder", "not-found/folder", "not-found/folder/object/below"} {
		_, err := store.Get(t.Context(), key)
		wantError(t, err, storage.ErrNotFound, key)
	}
}

func testConflict(t *testing.T, store storage.Store) {
	const key, missing = "conflict/object", "conflict/missing"
	_, err := store.Replace(t.Context(), missing, []byte("lost"), "")
	wantError(t, err, storage.ErrConflict, missing)

	first := mustCreate(t, store, key, "first")
	_, err = store.Create(t.Context(), key, []byte("lost"))
	wantError(t, err, storage.ErrConflict, key)
	_, err = store.Create(t.Context(), key, []byte("first"))
	wantError(t, err, storage.ErrConflict, key)
	wantObject(t, store, key, "first", first)

	second := mustReplace(t, store, key, "second", first)
	for _, etag := range []string{first, "", "something else"} {
		_, err = store.Replace(t.Context(), key, []byte("lost"), etag)
		wantError(t, err, storage.ErrConflict, key)
	}
	wantObject(t, store, key, "second", second)

	require.NoError(t, store.Delete(t.Context(), key))
	_, err = store.Replace(t.Context(), key, []byte("lost"), second)
	wantError(t, err, storage.ErrConflict, key)
	for _, notFound := range []string{key, missing} {
		_, err = store.Get(t.Context(), notFound)
		wantError(t, err, storage.ErrNotFound, notFound)
	}
}

func testDelete(t *testing.T, store storage.Store) {
	const key, other = "delete/object", "delete/object2"
	mustCreate(t, store, key, "data")
	etag := mustCreate(t, store, other, "data")
	for _, deleted := range []string{key, key, "delete/nothing", "delete/no/folder", "delete/object2/below"} {
		assert.NoError(t, store.Delete(t.Context(), deleted), "deleting %s", deleted)
	}
	_, err := store.Get(t.Context(), key)
	wantError(t, err, storage.ErrNotFound, key)
	wantObject(t, store, other, "data", etag)
	wantObject(t, store, key, "again", mustCreate(t, store, key, "again"))
}

func testDoneContext(t *testing.T, store storage.Store) {
	const key, missing = "done-context/object", "done-context/missing"
	etag := mustCreate(t, store, key, "data")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancelLate := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancelLate()
	contexts := []struct {
		ctx  context.Context
		want error
	}{
		{cancelled, context.Canceled},
		{late, context.DeadlineExceeded},
		{resumed{t.Context()}, context.DeadlineExceeded},
	}
	for _, c := range contexts {
		_, err := store.Get(c.ctx, key)
		wantError(t, err, c.want, key)
		_, err = store.Create(c.ctx, missing, []byte("late"))
		wantError(t, err, c.want, missing)
		_, err = store.Replace(c.ctx, key, []byte("late"), etag)
		wantError(t, err, c.want, key)
		wantError(t, store.Delete(c.ctx, key), c.want, key)
		_, err = store.List(c.ctx, "done-context/")
		wantError(t, err, c.want, "done-context/")
	}
	wantObject(t, store, key, "data", etag)
	_, err := store.Get(t.Context(), missing)
	wantError(t, err, storage.ErrNotFound, missing)
}

// resumed is the context of a process that has resumed after its deadline: the
// timer of the context has not run yet.
type resumed struct{ context.Context }

func (resumed) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }

// testConcurrentCreates creates the same object with 32 clients.
func testConcurrentCreates(t *testing.T, open func(t testing.TB) storage.Store) {
	const key = "concurrent-creates/object"
	const rounds, clients = 4, 32
	stores := make([]storage.Store, clients)
	for i := range stores {
		stores[i] = open(t)
	}
	for round := range rounds {
		key := key + strconv.Itoa(round)
		var start sync.WaitGroup
		start.Add(clients)
		var group errgroup.Group
		var winners atomic.Int32
		var winner atomic.Value
		for i, store := range stores {
			group.Go(func() error {
				start.Done()
				start.Wait()
				// Two clients each write the same data, and still only one succeeds.
				data := strconv.Itoa(i / 2)
				_, err := store.Create(t.Context(), key, []byte(data))
				if errors.Is(err, storage.ErrConflict) {
					return nil
				}
				if err == nil {
					winners.Add(1)
					winner.Store(data)
				}
				return err
			})
		}
		require.NoError(t, group.Wait())
		if n := winners.Load(); n != 1 {
			t.Fatalf("%d clients have created %s, want one", n, key)
		}
		assert.Equal(t, winner.Load(), string(mustGet(t, stores[0], key).Data), "the data of %s", key)
	}
}

// testConcurrentCounters increments one object in 8 goroutines. Two concurrent
// increments write the same data, and one of them must be rejected.
func testConcurrentCounters(t *testing.T, open func(t testing.TB) storage.Store) {
	const key = "concurrent-counters/object"
	const counters, increments = 8, 25
	mustCreate(t, open(t), key, "0")
	var group errgroup.Group
	for range counters {
		store := open(t)
		group.Go(func() error {
			for range increments {
				if err := Increment(t.Context(), store, key); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	if got, want := string(mustGet(t, open(t), key).Data), strconv.Itoa(counters*increments); got != want {
		t.Errorf("counted to %s, want %s", got, want)
	}
}

// Increment adds one to the number in an object. It is safe for concurrent use by
// several clients.
func Increment(ctx context.Context, store storage.Store, key string) error {
	for {
		object, err := store.Get(ctx, key)
		if err != nil {
			return err
		}
		number, err := strconv.Atoi(string(object.Data))
		if err != nil {
			return err
		}
		_, err = store.Replace(ctx, key, []byte(strconv.Itoa(number+1)), object.ETag)
		if !errors.Is(err, storage.ErrConflict) {
			return err
		}
	}
}

// MissingBucket tests that a missing bucket is not mistaken for an empty bucket, which would
// mean that the shard has no groups. The etag belongs to an object.
func MissingBucket(t *testing.T, s storage.Store, bucket, etag string) {
	_, getErr := s.Get(t.Context(), "object")
	_, createErr := s.Create(t.Context(), "object", nil)
	_, replaceErr := s.Replace(t.Context(), "object", nil, etag)
	_, listErr := s.List(t.Context(), "")
	for method, err := range map[string]error{
		"Get": getErr, "Create": createErr, "Replace": replaceErr, "List": listErr, "Delete": s.Delete(t.Context(), "object"),
	} {
		if err == nil || errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrConflict) || !strings.Contains(err.Error(), bucket) {
			t.Errorf("%s: got error %v, want another one that names the bucket", method, err)
		}
	}
}
