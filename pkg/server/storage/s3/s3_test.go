// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package s3

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/s3/s3test"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

const bucket = "nstance"

func open(t testing.TB) *Store {
	t.Helper()
	s, err := Open(t.Context(), bucket)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	s3test.Start(t, nil)
	s3test.CreateBucket(t, bucket)
	storagetest.Conformance(t, func(t testing.TB) storage.Store { return open(t) })
}

// TestMissingBucket checks that a bucket that does not exist is not taken for an
// empty one: without an object of groups a shard has none.
func TestMissingBucket(t *testing.T) {
	s3test.Start(t, nil)
	s := open(t)
	_, getErr := s.Get(t.Context(), "object")
	_, createErr := s.Create(t.Context(), "object", nil)
	_, replaceErr := s.Replace(t.Context(), "object", nil, `"etag"`)
	_, listErr := s.List(t.Context(), "")
	for method, err := range map[string]error{
		"Get": getErr, "Create": createErr, "Replace": replaceErr, "List": listErr, "Delete": s.Delete(t.Context(), "object"),
	} {
		if err == nil || errors.Is(err, storage.ErrNotFound) || errors.Is(err, storage.ErrConflict) || !strings.Contains(err.Error(), bucket) {
			t.Errorf("%s: got error %v, want one of another kind that names the bucket", method, err)
		}
	}
}

func TestOpen(t *testing.T) {
	s3test.Start(t, nil)
	if !open(t).client.Options().UsePathStyle {
		t.Error("with an endpoint of one's own the bucket is in the host name, want it in the path")
	}
	t.Setenv("AWS_ENDPOINT_URL_S3", "")
	if open(t).client.Options().UsePathStyle {
		t.Error("without an endpoint of one's own the bucket is in the path, want it in the host name")
	}
	t.Setenv("AWS_REGION", "")
	if _, err := Open(t.Context(), bucket); err == nil || !strings.Contains(err.Error(), "AWS_REGION") {
		t.Errorf("got error %v without a region, want one that names AWS_REGION", err)
	}
}

func TestPunctualClient(t *testing.T) {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests++ }))
	defer server.Close()
	client := punctualClient{server.Client()}
	do := func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPut, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		return response.Body.Close()
	}
	if err := do(resumed{t.Context()}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v, want %v", err, context.DeadlineExceeded)
	}
	if requests != 0 {
		t.Error("a request was sent after the deadline")
	}
	if err := do(t.Context()); err != nil || requests != 1 {
		t.Errorf("%d requests were sent in time (%v), want one", requests, err)
	}
}

// resumed is a context as it is in a process that was paused beyond its deadline
// and has just gone on: the timer that ends it had no turn yet.
type resumed struct{ context.Context }

func (resumed) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }
