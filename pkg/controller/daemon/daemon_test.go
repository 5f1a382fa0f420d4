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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"nstance.dev/operator/pkg/base/httpserver/httpservertest"
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

// A leader that no longer renews its lease, and does not exit, is restarted by the kubelet.
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

func TestTheConnectionsOfAnAddressAreLimited(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	_ = free.Close()
	require.NoError(t, NewHealth().Serve(t.Context(), address, http.NotFoundHandler()))
	httpservertest.Connections(t, func() (net.Conn, error) { return new(net.Dialer).DialContext(t.Context(), "tcp", address) })
}

func TestMetrics(t *testing.T) {
	code, body := ask(t, NewHealth(), "/metrics")
	for _, name := range []string{"go_goroutines", "nstance_operator_build_info{"} {
		if code != http.StatusOK || !strings.Contains(body, name) {
			t.Errorf("/metrics returns %d with %d bytes, without %s", code, len(body), name)
		}
	}
}

// reviewer is an API server that knows the token "prometheus", whose user may get
// /metrics, and the token "visitor", whose user may not.
func reviewer(t *testing.T) *kubefake.Clientset {
	client := kubefake.NewClientset()
	client.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		switch token := review.Spec.Token; token {
		case "prometheus", "visitor", "unreviewed":
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{
				Username: token, UID: "1", Groups: []string{"monitoring"}, Extra: map[string]authenticationv1.ExtraValue{"pod": {"p"}},
			}}
		case "broken":
			return true, nil, errors.New("timeout")
		}
		return true, review, nil
	})
	client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		assert.Equal(t, authorizationv1.SubjectAccessReviewSpec{
			User: review.Spec.User, UID: "1", Groups: []string{"monitoring"}, Extra: map[string]authorizationv1.ExtraValue{"pod": {"p"}},
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"},
		}, review.Spec)
		if review.Spec.User == "unreviewed" {
			return true, nil, errors.New("timeout")
		}
		review.Status.Allowed = review.Spec.User == "prometheus"
		return true, review, nil
	})
	return client
}

func TestMetricsAccess(t *testing.T) {
	client := reviewer(t)
	handler := NewAccess(client.AuthenticationV1(), client.AuthorizationV1()).Protect(NewMetricsHandler("nstance_operator"))
	for header, want := range map[string]int{
		"":                     http.StatusUnauthorized,
		"Bearer":               http.StatusUnauthorized,
		"Bearer ":              http.StatusUnauthorized,
		"Basic cHJvbWV0aGV1cw": http.StatusUnauthorized,
		"Bearer unknown":       http.StatusUnauthorized,
		"Bearer visitor":       http.StatusForbidden,
		"Bearer prometheus":    http.StatusOK,
		"bearer prometheus":    http.StatusOK,
		"Bearer broken":        http.StatusServiceUnavailable,
		"Bearer unreviewed":    http.StatusServiceUnavailable,
	} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
		request.Header.Set("Authorization", header)
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, request)
		assert.Equal(t, want, response.Code, header)
		assert.Equal(t, want == http.StatusOK, strings.Contains(response.Body.String(), "go_goroutines"), header)
	}
}

// A client without access causes reviews at the API server.
func TestMetricsReviewsAreLimited(t *testing.T) {
	client := reviewer(t)
	handler := NewAccess(client.AuthenticationV1(), client.AuthorizationV1()).Protect(NewMetricsHandler("nstance_operator"))
	refused := 0
	for range 100 * reviewsPerSecond {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
		request.Header.Set("Authorization", "Bearer unknown")
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, request)
		if response.Code == http.StatusTooManyRequests {
			refused++
		}
	}
	assert.Greater(t, refused, 50*reviewsPerSecond)
	assert.Less(t, len(client.Actions()), 50*reviewsPerSecond)
}
