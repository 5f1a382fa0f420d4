// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package s3

import (
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/storage/s3/s3test"
)

// operation returns the name of the operation that a request is.
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

// TestDocumentedPermissions: docs/server.md has exactly the operations that are called, and
// the policy of docs/aws.md allows exactly what they need.
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

	data, err := os.ReadFile("../../../../docs/server.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(data), "\n### Amazon S3\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n### ")
	action := regexp.MustCompile("`(s3:[A-Za-z]+)`")
	needed := map[string]bool{}
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Za-z0-9]+)` \\| (.+) \\|$").FindAllStringSubmatch(section, -1) {
		documented = append(documented, row[1])
		for _, one := range action.FindAllStringSubmatch(row[2], -1) {
			needed[one[1]] = true
		}
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(called)), documented)

	data, err = os.ReadFile("../../../../docs/aws.md")
	require.NoError(t, err)
	var allowed []string
	for _, one := range regexp.MustCompile(`"(s3:[A-Za-z*]+)"`).FindAllStringSubmatch(string(data), -1) {
		allowed = append(allowed, one[1])
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(needed)), allowed)
}
