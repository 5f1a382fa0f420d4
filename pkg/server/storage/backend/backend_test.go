// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package backend

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/gcs/gcstest"
	"nstance.dev/operator/pkg/server/storage/s3/s3test"
)

func TestOpenFile(t *testing.T) {
	for prefix, want := range map[string]string{"": "ca.crt", "a": "a/ca.crt", "a/b/": "a/b/ca.crt"} {
		dir := t.TempDir()
		create(t, File, dir, prefix)
		data, err := os.ReadFile(filepath.Join(dir, want))
		require.NoError(t, err)
		if string(data) != "data" {
			t.Errorf("with prefix %q: %s has data %q", prefix, want, data)
		}
	}
}

func TestOpenS3(t *testing.T) {
	s3test.Start(t, nil)
	s3test.CreateBucket(t, "nstance")
	create(t, S3, "nstance", "a/b")
	store, err := Open(t.Context(), S3, "nstance", "")
	require.NoError(t, err)
	if _, err := store.Get(t.Context(), "a/b/ca.crt"); err != nil {
		t.Error(err)
	}
}

func TestOpenGCS(t *testing.T) {
	t.Setenv("STORAGE_EMULATOR_HOST", gcstest.Start(t, nil, "nstance").URL)
	create(t, GCS, "nstance", "a/b")
	store, err := Open(t.Context(), GCS, "nstance", "")
	require.NoError(t, err)
	_, err = store.Get(t.Context(), "a/b/ca.crt")
	require.NoError(t, err)
}

// create creates an object in a storage.
func create(t *testing.T, provider, bucket, prefix string) {
	t.Helper()
	store, err := Open(t.Context(), provider, bucket, prefix)
	require.NoError(t, err)
	_, err = store.Create(t.Context(), storage.AuthorityKey, []byte("data"))
	require.NoError(t, err)
}

func TestOpenRejects(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "missing")
	t.Setenv("AWS_REGION", "")
	t.Setenv("AWS_DEFAULT_REGION", "")
	t.Setenv("AWS_CONFIG_FILE", os.DevNull)
	tests := []struct {
		name, provider, bucket, prefix string
		want                           []string
	}{
		{"no provider", "", dir, "", []string{"--storage", `""`, `"file", "gcs" or "s3"`}},
		{"an unknown provider", "azure", dir, "", []string{"--storage", `"azure"`, `"file", "gcs" or "s3"`}},
		{"no bucket", S3, "", "", []string{"--bucket"}},
		{"a folder that does not exist", File, missing, "", []string{"--bucket", missing}},
		{"a bucket without a region", S3, "nstance", "", []string{"--bucket", "nstance", "AWS_REGION"}},
		{"no name of a bucket", GCS, "a/b", "", []string{"--bucket", `"a/b"`}},
		{"a prefix that leads out of the bucket", File, dir, "../other", []string{"--prefix", `"../other"`}},
		{"a prefix with a leading slash", S3, "nstance", "/a", []string{"--prefix", `"/a"`}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			store, err := Open(t.Context(), tc.provider, tc.bucket, tc.prefix)
			if err == nil {
				t.Fatalf("opened %v, want an error", store)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got error %v, want one with %s", err, want)
				}
			}
		})
	}
}
