// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package secretstest

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/wait"
)

// motoStartTimeout is the time for moto to listen after it was started.
const motoStartTimeout = time.Minute

// motoEnv is the environment variable without which the tests with moto are skipped: make
// test-moto sets it.
const motoEnv = "NSTANCE_TEST_MOTO"

// StartMoto runs moto, a server that mocks services of AWS, until the end of the test. It
// skips the test unless it is required.
func StartMoto(t testing.TB) (address string) {
	t.Helper()
	if os.Getenv(motoEnv) == "" {
		t.Skipf("NOT TESTED with moto: %s is not set (make test-moto)", motoEnv)
	}
	if out, err := exec.CommandContext(t.Context(), "moto_server", "--help").CombinedOutput(); err != nil {
		t.Fatalf("moto_server does not run: %v %s", err, out)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	require.NoError(t, listener.Close())
	ctx, cancel := context.WithCancel(context.Background())
	program := exec.CommandContext(ctx, "moto_server", "--host", "127.0.0.1", "--port", port)
	require.NoError(t, program.Start())
	t.Cleanup(func() {
		cancel()
		_ = program.Wait()
	})
	moto := "http://127.0.0.1:" + port
	err = wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, motoStartTimeout, true, func(ctx context.Context) (bool, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, moto+"/moto-api/", nil)
		if err != nil {
			return false, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false, nil //nolint:nilerr // it has not started
		}
		return true, response.Body.Close()
	})
	require.NoError(t, err, "waiting for moto")
	return oneAtATime(t, moto)
}

// oneAtATime passes requests on to moto one after the other: moto has no locks, so of
// two creations at the same time both may succeed.
func oneAtATime(t testing.TB, moto string) (address string) {
	t.Helper()
	target, err := url.Parse(moto)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	var mu sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// ResetMoto removes all resources of moto.
func ResetMoto(t testing.TB, url string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/moto-api/reset", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
}
