// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package deadline_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/deadline"
)

func TestCheck(t *testing.T) {
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	future, cancelFuture := context.WithTimeout(t.Context(), time.Hour)
	defer cancelFuture()
	past, cancelPast := context.WithTimeout(t.Context(), -time.Second)
	defer cancelPast()
	tests := []struct {
		name string
		ctx  context.Context
		want error
	}{
		{"without a deadline", t.Context(), nil},
		{"before the deadline", future, nil},
		{"after the deadline", past, context.DeadlineExceeded},
		{"after the deadline, before the timer has run", resumed{t.Context()}, context.DeadlineExceeded},
		{"cancelled", cancelled, context.Canceled},
	}
	for _, tc := range tests {
		if err := deadline.Check(tc.ctx); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", tc.name, err, tc.want)
		}
	}
}

func TestHTTPClient(t *testing.T) {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { requests++ }))
	defer server.Close()
	client := deadline.HTTPClient(server.Client().Do)
	do := func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodPut, server.URL, nil)
		require.NoError(t, err)
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
		t.Errorf("%d requests were sent before the deadline (%v), want one", requests, err)
	}
}

// resumed is the context of a process that has resumed after its deadline: the
// timer of the context has not run yet.
type resumed struct{ context.Context }

func (resumed) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }
