// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dashboard

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/plugin/objects"
	"nstance.dev/operator/pkg/plugin/plugintest"
)

// running is a dashboard that reads a snapshot each time the test passes one on.
type running struct {
	listener  net.Listener
	snapshots chan *objects.Snapshot
	reads     atomic.Int32
	stop      context.CancelFunc
	ended     chan error
}

func start(t *testing.T) *running {
	t.Helper()
	r := &running{snapshots: make(chan *objects.Snapshot), ended: make(chan error, 1)}
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	r.stop = stop
	var err error
	r.listener, err = Listen(ctx, 0)
	require.NoError(t, err)
	c := newCollector(func(ctx context.Context) (*objects.Snapshot, error) {
		select {
		case snapshot := <-r.snapshots:
			r.reads.Add(1)
			return snapshot, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}, "dev", time.Millisecond)
	go func() { r.ended <- serve(ctx, r.listener, c) }()
	return r
}

// viewer is a browser that receives updates.
type viewer struct{ *bufio.Reader }

func (r *running) view(t *testing.T) viewer {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, URL(r.listener)+"updates", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	t.Cleanup(func() { _ = response.Body.Close() })
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))
	return viewer{bufio.NewReader(response.Body)}
}

// until returns when the viewer has received a text.
func (v viewer) until(t *testing.T, text string) {
	t.Helper()
	for {
		line, err := v.ReadString('\n')
		require.NoError(t, err)
		if strings.Contains(line, text) {
			return
		}
	}
}

// An update is read once and sent to every viewer.
func TestEveryViewerReceivesAnUpdate(t *testing.T) {
	r := start(t)
	first, second := r.view(t), r.view(t)
	r.snapshots <- plugintest.AtRest()
	changed := plugintest.AtRest()
	changed.Pools.Items[0].Name = "renamed"
	r.snapshots <- changed
	first.until(t, "Pool renamed has settled.")
	second.until(t, "Pool renamed has settled.")
	if got := r.reads.Load(); got != 2 {
		t.Errorf("%d reads for 2 viewers, want 2", got)
	}
}

// The end of the command ends the connections of viewers too.
func TestServerEnds(t *testing.T) {
	r := start(t)
	v := r.view(t)
	r.snapshots <- plugintest.AtRest()
	v.until(t, "Pool workers has settled.")
	r.stop()
	require.NoError(t, <-r.ended)
	if _, err := io.Copy(io.Discard, v); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		var network net.Error
		if !errors.As(err, &network) {
			t.Errorf("the stream ended with %v", err)
		}
	}
	if _, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.listener.Addr().String()); err == nil {
		t.Error("the server still listens")
	}
}

// The dashboard listens on the loopback address only.
func TestListensOnLoopback(t *testing.T) {
	listener, err := Listen(t.Context(), 0)
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	address := listener.Addr().(*net.TCPAddr)
	if !address.IP.IsLoopback() {
		t.Errorf("listens on %s", address)
	}
	_, err = Listen(t.Context(), uint16(address.Port))
	require.ErrorContains(t, err, "listen on --port ")
}

const testHost = "127.0.0.1:8080"

// newTestHandler returns a handler whose objects are read at once.
func newTestHandler(t *testing.T) http.Handler {
	t.Helper()
	read, _ := counting(0)
	c := newCollector(read, "dev", time.Minute)
	go c.run(t.Context())
	return newHandler(c, []string{testHost, "localhost:8080"})
}

func request(t *testing.T, h http.Handler, method, host, path string) *httptest.ResponseRecorder {
	t.Helper()
	ctx := t.Context()
	if path == "/updates" {
		// A stream that must not begin would not end either.
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		cancel()
	}
	r := httptest.NewRequestWithContext(ctx, method, path, nil)
	r.Host = host
	response := httptest.NewRecorder()
	h.ServeHTTP(response, r)
	return response
}

// A site whose name resolves to the loopback address must not read the page.
func TestOtherHostsAreRefused(t *testing.T) {
	h := newTestHandler(t)
	for host, code := range map[string]int{
		testHost: http.StatusOK, "localhost:8080": http.StatusOK,
		"": http.StatusMisdirectedRequest, "127.0.0.1": http.StatusMisdirectedRequest, "127.0.0.1:80": http.StatusMisdirectedRequest,
		"evil.example:8080": http.StatusMisdirectedRequest, "127.0.0.1:8080.evil.example": http.StatusMisdirectedRequest,
		"localhost.evil.example:8080": http.StatusMisdirectedRequest, "[::1]:8080": http.StatusMisdirectedRequest,
	} {
		for _, path := range []string{"/", "/style.css", "/script.js", "/icon.svg"} {
			response := request(t, h, http.MethodGet, host, path)
			if response.Code != code {
				t.Errorf("host %q, %s: %d, want %d", host, path, response.Code, code)
			}
			if code != http.StatusOK && strings.Contains(response.Body.String(), "workers") {
				t.Errorf("host %q: %s", host, response.Body)
			}
		}
	}
	if response := request(t, h, http.MethodGet, "evil.example:8080", "/updates"); response.Code != http.StatusMisdirectedRequest {
		t.Errorf("/updates: %d", response.Code)
	}
}

func TestOnlyReadsAreServed(t *testing.T) {
	h := newTestHandler(t)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodConnect, http.MethodTrace, "X"} {
		for _, path := range []string{"/", "/updates", "/style.css", "/none"} {
			response := request(t, h, method, testHost, path)
			if response.Code != http.StatusMethodNotAllowed || response.Header().Get("Allow") != "GET, HEAD" {
				t.Errorf("%s %s: %d, Allow %q", method, path, response.Code, response.Header().Get("Allow"))
			}
		}
	}
	for _, path := range []string{"/", "/updates", "/style.css"} {
		if response := request(t, h, http.MethodHead, testHost, path); response.Code != http.StatusOK {
			t.Errorf("HEAD %s: %d", path, response.Code)
		}
	}
	for _, path := range []string{"/none", "/assets/style.css", "/live.gohtml", "/style.css/..", "/index.html"} {
		if response := request(t, h, http.MethodGet, testHost, path); response.Code == http.StatusOK {
			t.Errorf("GET %s: %d", path, response.Code)
		}
	}
}

// The page loads nothing but what this server serves, and no other site may embed it.
func TestHeaders(t *testing.T) {
	h := newTestHandler(t)
	for path, kind := range map[string]string{
		"/": "text/html; charset=utf-8", "/style.css": "text/css; charset=utf-8", "/script.js": "text/javascript; charset=utf-8", "/icon.svg": "image/svg+xml",
	} {
		header := request(t, h, http.MethodGet, testHost, path).Header()
		for name, want := range map[string]string{
			"Content-Type": kind,
			"Content-Security-Policy": "default-src 'none'; connect-src 'self'; img-src 'self'; script-src 'self'; style-src 'self'; " +
				"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
			"Cross-Origin-Opener-Policy": "same-origin", "Cross-Origin-Resource-Policy": "same-origin", "Referrer-Policy": "no-referrer",
			"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Access-Control-Allow-Origin": "",
		} {
			if got := header.Get(name); got != want {
				t.Errorf("%s: %s is %q, want %q", path, name, got, want)
			}
		}
	}
	page := request(t, h, http.MethodGet, testHost, "/").Body.String()
	for _, external := range []string{"http:", "https:", "//", "style=", "onload", "onclick"} {
		if strings.Contains(page, external) {
			t.Errorf("the page has %q", external)
		}
	}
}
