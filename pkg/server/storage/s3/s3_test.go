// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package s3

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/secrets/secretstest"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/s3/s3test"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

const bucket = "nstance"

func open(t testing.TB) *Store {
	t.Helper()
	s, err := Open(t.Context(), bucket)
	require.NoError(t, err)
	return s
}

func TestConformance(t *testing.T) {
	s3test.Start(t, nil)
	s3test.CreateBucket(t, bucket)
	storagetest.Conformance(t, func(t testing.TB) storage.Store { return open(t) })
}

// TestMoto: the storage passes its suite with a second imitation that others wrote. It is asked
// for one thing at a time, because it has no locks, so it says nothing about writes at once.
func TestMoto(t *testing.T) {
	target, err := url.Parse(secretstest.StartMoto(t))
	require.NoError(t, err)
	n := &storagetest.Network{Method: http.MethodPut}
	s3test.Use(t, n.Connect(httputil.NewSingleHostReverseProxy(target)))
	storagetest.MissingBucket(t, open(t), bucket, `"etag"`)
	s3test.CreateBucket(t, bucket)
	storagetest.Conformance(t, func(t testing.TB) storage.Store { return open(t) })
	n.RetriedWrites(t, func() storage.Store { return open(t) }, 0)
}

func TestMissingBucket(t *testing.T) {
	s3test.Start(t, nil)
	storagetest.MissingBucket(t, open(t), bucket, `"etag"`)
}

func TestOpen(t *testing.T) {
	s3test.Start(t, nil)
	if !open(t).client.Options().UsePathStyle {
		t.Error("with a custom endpoint the bucket is in the host name, want it in the path")
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", "")
	if open(t).client.Options().UsePathStyle {
		t.Error("without a custom endpoint the bucket is in the path, want it in the host name")
	}
	t.Setenv("AWS_REGION", "")
	if _, err := Open(t.Context(), bucket); err == nil || !strings.Contains(err.Error(), "AWS_REGION") {
		t.Errorf("got error %v without a region, want one that names AWS_REGION", err)
	}
}

func TestRetriedWrites(t *testing.T) {
	n := &storagetest.Network{Method: http.MethodPut}
	s3test.Start(t, n.Connect)
	s3test.CreateBucket(t, bucket)
	n.RetriedWrites(t, func() storage.Store { return open(t) }, 0)

	conflict := func(w http.ResponseWriter) {
		w.WriteHeader(http.StatusConflict)
		_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", codeConditionalConflict)
	}
	// Another operation on the object was in progress, and has changed nothing.
	t.Run("in progress", func(t *testing.T) {
		n.FailWrite(func(w http.ResponseWriter, _ *http.Request) { conflict(w) })
		s := open(t)
		etag, err := s.Create(t.Context(), "in progress", []byte("ours"))
		require.NoError(t, err)
		object, err := s.Get(t.Context(), "in progress")
		require.NoError(t, err)
		assert.Equal(t, etag, object.ETag)
	})
	// The operation in progress was an attempt of this write.
	t.Run("own", func(t *testing.T) {
		n.FailWrite(func(w http.ResponseWriter, r *http.Request) {
			n.Forward(httptest.NewRecorder(), r)
			conflict(w)
		})
		s := open(t)
		etag, err := s.Create(t.Context(), "own", []byte("ours"))
		require.NoError(t, err)
		object, err := s.Get(t.Context(), "own")
		require.NoError(t, err)
		assert.Equal(t, etag, object.ETag)
	})
	// Another writer was faster.
	t.Run("other", func(t *testing.T) {
		s, another := open(t), open(t)
		n.FailWrite(func(w http.ResponseWriter, r *http.Request) {
			_, err := another.Create(r.Context(), "other", []byte("theirs"))
			assert.NoError(t, err)
			conflict(w)
		})
		_, err := s.Create(t.Context(), "other", []byte("ours"))
		require.ErrorIs(t, err, storage.ErrConflict)
	})
}

// TestAWriteThatIsAlwaysInProgress is no conflict: nobody else has written the object.
func TestAWriteThatIsAlwaysInProgress(t *testing.T) {
	var writes atomic.Int32
	s3test.Start(t, func(service http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPut || strings.Count(r.URL.Path, "/") == 1 {
				service.ServeHTTP(w, r)
				return
			}
			writes.Add(1)
			w.WriteHeader(http.StatusConflict)
			_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", codeConditionalConflict)
		})
	})
	s3test.CreateBucket(t, bucket)
	_, err := open(t).Create(t.Context(), "a", nil)
	require.ErrorContains(t, err, codeConditionalConflict)
	require.NotErrorIs(t, err, storage.ErrConflict)
	assert.Equal(t, int32(maxConflicts), writes.Load())
}

// operation returns the name of the S3 operation of a request.
func operation(r *http.Request) string {
	switch ofBucket := strings.Count(strings.Trim(r.URL.Path, "/"), "/") == 0; {
	case ofBucket && r.Method == http.MethodGet && r.URL.Query().Get("list-type") == "2":
		return "ListObjectsV2"
	case !ofBucket && r.Method == http.MethodGet:
		return "GetObject"
	case !ofBucket && r.Method == http.MethodPut:
		return "PutObject"
	case !ofBucket && r.Method == http.MethodDelete:
		return "DeleteObject"
	}
	return r.Method + " " + r.URL.String()
}

// TestDocumentedPermissions: docs/server.md lists exactly the operations that are called, and
// the policy of docs/aws.md allows exactly these operations.
func TestDocumentedPermissions(t *testing.T) {
	called := map[string]bool{}
	s3test.Start(t, func(service http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			called[operation(r)] = true
			service.ServeHTTP(w, r)
		})
	})
	s3test.CreateBucket(t, bucket)
	clear(called)
	store := open(t)
	etag, err := store.Create(t.Context(), "a", nil)
	require.NoError(t, err)
	_, err = store.Replace(t.Context(), "a", []byte("b"), etag)
	require.NoError(t, err)
	_, err = store.Get(t.Context(), "a")
	require.NoError(t, err)
	_, err = store.List(t.Context(), "")
	require.NoError(t, err)
	require.NoError(t, store.Delete(t.Context(), "a"))

	data, err := os.ReadFile("../../../../docs/server-reference.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(data), "\n### Amazon S3\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n### ")
	action := regexp.MustCompile("`(s3:[A-Za-z]+)`")
	needed := map[string]bool{}
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Za-z0-9]+)` \\| (.+) \\|$").FindAllStringSubmatch(section, -1) {
		documented = append(documented, row[1])
		for _, match := range action.FindAllStringSubmatch(row[2], -1) {
			needed[match[1]] = true
		}
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(called)), documented)

	data, err = os.ReadFile("../../../../docs/aws.md")
	require.NoError(t, err)
	var allowed []string
	for _, match := range regexp.MustCompile(`"(s3:[A-Za-z*]+)"`).FindAllStringSubmatch(string(data), -1) {
		allowed = append(allowed, match[1])
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(needed)), allowed)
}
