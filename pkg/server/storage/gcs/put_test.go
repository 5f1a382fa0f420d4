// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gcs

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/server/storage/storagetest"
)

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

// TestAttempts: a service that stays unavailable gives an error that is no conflict, and an
// error that would be the same again is not repeated.
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
