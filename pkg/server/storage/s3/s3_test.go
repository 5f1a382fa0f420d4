// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package s3

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
