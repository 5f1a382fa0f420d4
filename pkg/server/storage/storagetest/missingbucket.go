// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storagetest

import (
	"errors"
	"strings"
	"testing"

	"nstance.dev/operator/pkg/server/storage"
)

// MissingBucket tests that a missing bucket is not mistaken for an empty one, which would
// mean that the shard has no groups. The etag is one of an object.
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
