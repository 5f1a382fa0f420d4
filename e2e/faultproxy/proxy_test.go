// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faultproxy

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

// behind returns a proxy and a client of it. The API server behind it responds to a list with the
// token that it received, and to a watch with a single line.
func behind(t *testing.T) (*Proxy, *http.Client) {
	t.Helper()
	upstream := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("Authorization"))
		if r.URL.Query().Get("watch") == "true" {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}
	}))
	t.Cleanup(upstream.Close)
	proxy, err := Start(&rest.Config{Host: upstream.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, upstream.TLS.Certificates[0])
	require.NoError(t, err)
	t.Cleanup(func() { _ = proxy.Close() })
	return proxy, upstream.Client()
}

func get(t *testing.T, client *http.Client, url string) (*http.Response, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	request.Header.Set("Authorization", "Bearer token")
	return client.Do(request)
}

const (
	nodes        = "/api/v1/nodes"
	machinePools = "/apis/cluster.x-k8s.io/v1beta2/namespaces/x/machinepools"
)

func TestOnlyMatchingRequestsFail(t *testing.T) {
	proxy, client := behind(t)
	fault := proxy.Inject(Rule{Verbs: []string{"list"}, Resource: "nodes", Code: http.StatusForbidden})
	proxy.Inject(Rule{Verbs: []string{"get"}, Resource: "machinepools", Code: http.StatusForbidden})
	proxy.Inject(Rule{Verbs: []string{"get"}, Resource: "nodes/status", Code: http.StatusForbidden})
	for _, c := range []struct {
		path string
		code int
	}{
		{nodes, http.StatusForbidden},
		{nodes + "/one", http.StatusOK},
		{nodes + "/one/status", http.StatusForbidden},
		{machinePools, http.StatusOK},
		{machinePools + "/one", http.StatusForbidden},
		{machinePools + "/one/status", http.StatusOK},
	} {
		response, err := get(t, client, proxy.URL+c.path)
		require.NoError(t, err)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		if response.StatusCode != c.code || (c.code == http.StatusOK && string(body) != "Bearer token") {
			t.Errorf("GET %s: %s %q, want %d", c.path, response.Status, body, c.code)
		}
		_ = response.Body.Close()
	}
	if fault.Met() != 1 {
		t.Errorf("the fault was met %d times, want once", fault.Met())
	}
	proxy.Heal()
	response, err := get(t, client, proxy.URL+nodes)
	if err != nil {
		t.Fatalf("after healing: %v", err)
	}
	if _ = response.Body.Close(); response.StatusCode != http.StatusOK {
		t.Errorf("after healing: %s", response.Status)
	}
}

func TestRequestsBeforeAFaultAreForwarded(t *testing.T) {
	proxy, client := behind(t)
	fault := proxy.Inject(Rule{Except: "nodes", After: 2, Code: http.StatusForbidden})
	for _, c := range []struct {
		path string
		code int
	}{
		{machinePools, http.StatusOK},
		{nodes, http.StatusOK},
		{machinePools + "/one", http.StatusOK},
		{nodes, http.StatusOK},
		{machinePools, http.StatusForbidden},
		{nodes, http.StatusOK},
		{"/version", http.StatusForbidden},
	} {
		response, err := get(t, client, proxy.URL+c.path)
		require.NoError(t, err)
		assert.Equal(t, c.code, response.StatusCode, c.path)
		_ = response.Body.Close()
	}
	assert.Equal(t, 2, fault.Met())
}

func TestHangingRequestIsAbortedWhenHealed(t *testing.T) {
	proxy, client := behind(t)
	fault := proxy.Inject(Rule{Resource: "machinepools"})
	done := make(chan error, 1)
	go func() {
		response, err := get(t, client, proxy.URL+machinePools)
		if err == nil {
			_ = response.Body.Close()
		}
		done <- err
	}()
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) { return fault.Met() > 0, nil })
	if err != nil {
		t.Fatal("the request did not arrive")
	}
	select {
	case err := <-done:
		t.Fatalf("the request returned: %v", err)
	default:
	}
	proxy.Heal()
	if err := <-done; err == nil {
		t.Error("the request was answered, want a broken connection")
	}
}

func TestWatchesAreCut(t *testing.T) {
	proxy, client := behind(t)
	response, err := get(t, client, proxy.URL+nodes+"?watch=true")
	require.NoError(t, err)
	defer response.Body.Close()
	if _, err := io.ReadFull(response.Body, make([]byte, len("Bearer token"))); err != nil {
		t.Fatalf("nothing came through the watch: %v", err)
	}
	if n := proxy.CutWatches("machinepools"); n != 0 {
		t.Errorf("%d watches of machinepools were cut, want 0", n)
	}
	if n := proxy.CutWatches(""); n != 1 {
		t.Errorf("%d watches were cut, want 1", n)
	}
	if _, err := io.ReadAll(response.Body); err == nil {
		t.Error("the watch was closed regularly, want a broken connection")
	}
}
