// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/internal/leader"
)

// expectResponse queries s at both paths.
func expectResponse(t *testing.T, s *server, status int, want leader.Lock) {
	t.Helper()
	for _, path := range []string{"/leader/health", "/health/leadership"} {
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		var lock leader.Lock
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &lock), "%s answers %q", path, w.Body)
		if w.Code != status || lock != want || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("%s answers %d, %v %v, want %d, %v", path, w.Code, w.Header(), lock, status, want)
		}
	}
}

func TestHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := openStorage(t)
		first := start(t, store, "one", nil)
		pass(time.Second)
		second := start(t, store, "two", nil)
		lock, _ := readLock(t, store)
		expectResponse(t, first, http.StatusOK, lock)
		expectResponse(t, second, http.StatusServiceUnavailable, lock)

		// A leader that lost the storage still knows the last leader, and that
		// there is none now.
		first.link.set(down)
		second.link.set(down)
		pass(lease)
		expectResponse(t, first, http.StatusServiceUnavailable, lock)
		expectResponse(t, second, http.StatusServiceUnavailable, lock)

		second.link.set(working)
		overwrite(t, store, "nobody")
		pass(interval)
		expectResponse(t, second, http.StatusServiceUnavailable, leader.Lock{})
		w := httptest.NewRecorder()
		second.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/leader/health", nil))
		if w.Code != http.StatusMethodNotAllowed {
			t.Errorf("a POST is answered %d", w.Code)
		}
	})
}
