// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package daemon

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
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

// The process of a leader that renews its lease no more, and does not end, is restarted.
func TestHealthOfALeaderThatDoesNotRenewItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := kubefake.NewClientset()
		var fails atomic.Bool
		client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return fails.Load(), nil, errors.New("timeout")
		})
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Namespace: "default", Name: "operator"}, Client: client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: "one"},
			},
			LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
			Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
		})
		require.NoError(t, err)
		h := NewHealth()
		h.Watchdog.SetLeaderElection(elector)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go elector.Run(ctx)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.True(t, elector.IsLeader())
		if code, body := ask(t, h, "/healthz"); code != http.StatusOK {
			t.Errorf("/healthz returns %d, %q while the lease is renewed", code, body)
		}
		fails.Store(true)
		time.Sleep(15*time.Second + renewTolerance + 5*time.Second)
		synctest.Wait()
		if code, body := ask(t, h, "/healthz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "lease") {
			t.Errorf("/healthz returns %d, %q when the lease has expired", code, body)
		}
		cancel()
		synctest.Wait()
	})
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
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, 10*time.Second, 10*time.Millisecond, "the listener is closed a moment after the context")
}
