// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcs

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"
	"golang.org/x/sync/errgroup"

	"nstance.dev/operator/pkg/server/googleapi"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/gcs/gcstest"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

const bucket = "nstance"

// start runs a server with a bucket, which clients find in the environment.
func start(t *testing.T, middleware func(http.Handler) http.Handler, buckets ...string) *gcstest.Server {
	t.Helper()
	s := gcstest.Start(t, middleware, buckets...)
	t.Setenv(emulatorEnv, s.URL)
	return s
}

func openBucket(t testing.TB) *Store {
	t.Helper()
	s, err := Open(bucket)
	require.NoError(t, err)
	s.pace.interval = time.Millisecond
	return s
}

// TestTheTimeOfTheLastWriteIsOptional: an object without the header can be read.
func TestTheTimeOfTheLastWriteIsOptional(t *testing.T) {
	s := start(t, nil, bucket)
	s.NoLastModified = true
	store := openBucket(t)
	etag, err := store.Create(t.Context(), "a", []byte("data"))
	require.NoError(t, err)
	object, err := store.Get(t.Context(), "a")
	require.NoError(t, err)
	assert.Equal(t, storage.Object{Data: []byte("data"), ETag: etag}, object)
}

// TestWritesOfOneObjectArePaced: the service allows one write of an object name per interval.
func TestWritesOfOneObjectArePaced(t *testing.T) {
	const interval = 50 * time.Millisecond
	s := start(t, nil, bucket)
	s.WriteInterval = interval
	store := openBucket(t)
	store.pace.interval = interval
	begin := time.Now()
	var group errgroup.Group
	for n := range 8 {
		group.Go(func() error {
			_, err := store.Create(t.Context(), fmt.Sprint("other", n), nil)
			return err
		})
	}
	require.NoError(t, group.Wait())
	etag, err := store.Create(t.Context(), "a", nil)
	require.NoError(t, err)
	for range 4 {
		etag, err = store.Replace(t.Context(), "a", nil, etag)
		require.NoError(t, err)
	}
	require.NoError(t, store.Delete(t.Context(), "a"))
	_, err = store.Create(t.Context(), "a", nil)
	require.NoError(t, err)
	assert.Zero(t, s.Throttled(), "writes that came too early")
	assert.GreaterOrEqual(t, time.Since(begin), 6*interval)
}

// TestAWriteThatAnotherWriterDelaysIsRepeated: another process has just written the object.
func TestAWriteThatAnotherWriterDelaysIsRepeated(t *testing.T) {
	const interval = time.Second
	s := start(t, nil, bucket)
	s.WriteInterval = interval
	store, other := openBucket(t), openBucket(t)
	store.pace.interval = interval
	etag, err := other.Create(t.Context(), "a", nil)
	require.NoError(t, err)
	_, err = store.Replace(t.Context(), "a", nil, etag)
	require.NoError(t, err)
	assert.Equal(t, 1, s.Throttled(), "writes that came too early")
}

// TestAWriteThatWaitsEndsWithItsContext without a request.
func TestAWriteThatWaitsEndsWithItsContext(t *testing.T) {
	s := start(t, nil, bucket)
	store := openBucket(t)
	store.pace.interval = time.Hour
	etag, err := store.Create(t.Context(), "a", nil)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err = store.Replace(ctx, "a", []byte("late"), etag)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NotErrorIs(t, err, storage.ErrConflict)
	object, err := store.Get(t.Context(), "a")
	require.NoError(t, err)
	assert.Empty(t, object.Data)
	assert.Zero(t, s.Throttled())
}

func TestConformance(t *testing.T) {
	start(t, nil, bucket)
	storagetest.Conformance(t, func(t testing.TB) storage.Store { return openBucket(t) })
}

func TestMissingBucket(t *testing.T) {
	start(t, nil)
	storagetest.MissingBucket(t, openBucket(t), bucket, "1")
}

func TestOpen(t *testing.T) {
	for _, name := range []string{"", "a", "A-bucket", "a/b", "-ab", "a?b", strings.Repeat("a", 223)} {
		_, err := Open(name)
		assert.Error(t, err, name)
	}
	s := start(t, nil, bucket)
	t.Setenv(emulatorEnv, strings.TrimPrefix(s.URL, "http://"))
	_, err := openBucket(t).Create(t.Context(), "a", nil)
	require.NoError(t, err)
}

// TestCredentials: without credentials calls fail, and with them a token is sent.
func TestCredentials(t *testing.T) {
	s := gcstest.Start(t, nil, bucket)
	s.Token = "secret"
	store, err := open(bucket, s.URL, googleapi.WithToken(http.DefaultTransport, oauth2.StaticTokenSource(&oauth2.Token{AccessToken: "secret"})))
	require.NoError(t, err)
	_, err = store.Create(t.Context(), "a", nil)
	require.NoError(t, err)

	store, err = open(bucket, s.URL, http.DefaultTransport)
	require.NoError(t, err)
	_, err = store.Get(t.Context(), "a")
	require.ErrorContains(t, err, "HTTP 401")
	require.NotErrorIs(t, err, storage.ErrNotFound)
}

// TestCorruptedData is not returned.
func TestCorruptedData(t *testing.T) {
	start(t, func(service http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				w.Header().Set("X-Goog-Hash", "crc32c=AAAAAA==,md5=x")
				w.Header().Set("X-Goog-Generation", "1")
				w.Header().Set("Last-Modified", "Tue, 24 Nov 2026 02:00:00 GMT")
				_, _ = w.Write([]byte("data"))
				return
			}
			service.ServeHTTP(w, r)
		})
	}, bucket)
	_, err := openBucket(t).Get(t.Context(), "a")
	require.ErrorContains(t, err, "checksum")
}

// TestDocumentedCalls: the documents list exactly the calls that are made. The tests of
// "nstance-admin shard init" compare the permissions of the table with what the command grants.
func TestDocumentedCalls(t *testing.T) {
	s := start(t, nil, bucket)
	store := openBucket(t)
	etag, err := store.Create(t.Context(), "a", nil)
	require.NoError(t, err)
	_, err = store.Replace(t.Context(), "a", nil, etag)
	require.NoError(t, err)
	_, err = store.Get(t.Context(), "a")
	require.NoError(t, err)
	_, err = store.List(t.Context(), "")
	require.NoError(t, err)
	require.NoError(t, store.Delete(t.Context(), "a"))

	data, err := os.ReadFile("../../../../docs/server-reference.md")
	require.NoError(t, err)
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(storage\\.[a-z]+\\.[a-z]+)` \\| .+ \\|$").FindAllStringSubmatch(string(data), -1) {
		documented = append(documented, row[1])
	}
	slices.Sort(documented)
	assert.Equal(t, s.Methods(), documented)
}

func TestRetriedWrites(t *testing.T) {
	n := &storagetest.Network{Method: http.MethodPost}
	start(t, n.Connect, bucket)
	n.RetriedWrites(t, func() storage.Store { return openBucket(t) }, 0, http.StatusServiceUnavailable)
}

// TestEtagsOfNoObject: the generation 0 would create an object.
func TestEtagsOfNoObject(t *testing.T) {
	s := start(t, nil, bucket)
	store := openBucket(t)
	for _, etag := range []string{"0", "-1", "+1", "01", "1.0", "9223372036854775808"} {
		_, err := store.Replace(t.Context(), "a", nil, etag)
		require.ErrorIs(t, err, storage.ErrConflict, etag)
	}
	assert.Empty(t, s.Methods(), "calls")
}

// TestAttempts: a service that stays unavailable gives an error that is not a conflict, and
// permanent errors are not repeated.
func TestAttempts(t *testing.T) {
	for status, want := range map[int]int32{429: maxAttempts, 500: maxAttempts, 503: maxAttempts, 400: 1, 403: 1, 404: 1} {
		var requests atomic.Int32
		start(t, func(http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				requests.Add(1)
				w.WriteHeader(status)
			})
		})
		_, err := openBucket(t).Create(t.Context(), "a", nil)
		require.ErrorContains(t, err, fmt.Sprint("HTTP ", status))
		require.NotErrorIs(t, err, storage.ErrConflict)
		assert.Equal(t, want, requests.Load(), status)
	}
}
