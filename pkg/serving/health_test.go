// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package serving

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func ask(t *testing.T, h *Health, path string) (int, string) {
	t.Helper()
	answer := httptest.NewRecorder()
	h.handler(NewMetricsHandler("nstance_operator")).ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return answer.Code, answer.Body.String()
}

func TestProbes(t *testing.T) {
	h := NewHealth()
	if code, body := ask(t, h, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz returns %d, %q before the election", code, body)
	}
	if code, body := ask(t, h, "/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "caches") {
		t.Errorf("/readyz returns %d, %q before the caches are complete", code, body)
	}
	h.Synced.Store(true)
	if code, body := ask(t, h, "/readyz"); code != http.StatusOK {
		t.Errorf("/readyz returns %d, %q", code, body)
	}
}

func TestServeNamesTheFlagOfAnAddressThatIsTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	err = NewHealth().Serve(t.Context(), taken.Addr().String(), http.NotFoundHandler())
	if err == nil || !strings.Contains(err.Error(), "--http-address "+taken.Addr().String()) {
		t.Errorf("got error %v", err)
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	_ = free.Close()
	require.NoError(t, NewHealth().Serve(ctx, address, http.NotFoundHandler()))
	answer, err := http.Get("http://" + address + "/healthz")
	require.NoError(t, err)
	_ = answer.Body.Close()
	cancel()
	// The listener is closed a moment after the context.
	for {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		_ = conn.Close()
	}
}
