// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package dashboard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"nstance.dev/operator/pkg/plugin/objects"
)

const (
	// readInterval is the time between two reads while the page is open.
	readInterval = 3 * time.Second
	// readHeaderTimeout keeps clients that send nothing from piling up.
	readHeaderTimeout = 10 * time.Second
)

// loopback is the only address at which the page is served, because the page shows everything
// that the user may read and has no login.
const loopback = "127.0.0.1"

// Listen returns a listener on the loopback address. Port 0 is any free port.
func Listen(ctx context.Context, port uint16) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp4", net.JoinHostPort(loopback, strconv.Itoa(int(port))))
	if err != nil {
		return nil, fmt.Errorf("listen on --port %d: %w", port, err)
	}
	return listener, nil
}

// URL returns the address of the page.
func URL(listener net.Listener) string { return "http://" + listener.Addr().String() + "/" }

// Serve serves the page until ctx is done. read reads the objects; source names the
// cluster.
func Serve(ctx context.Context, listener net.Listener, source string, read func(context.Context) (*objects.Snapshot, error)) error {
	return serve(ctx, listener, newCollector(read, source, readInterval))
}

func serve(ctx context.Context, listener net.Listener, c *collector) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { c.run(ctx) })
	server := &http.Server{
		Handler: newHandler(c, hosts(listener)), ReadHeaderTimeout: readHeaderTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	// A viewer stays connected, so waiting for the end of its request would not end.
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// hosts returns the values of the header Host that requests of this machine have.
func hosts(listener net.Listener) []string {
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	allowed := []string{net.JoinHostPort(loopback, port), net.JoinHostPort("localhost", port)}
	if port == "80" {
		// Browsers leave out the default port.
		allowed = append(allowed, loopback, "localhost")
	}
	return allowed
}

// policy lets the page load only files of this server
// (https://www.w3.org/TR/CSP3/).
const policy = "default-src 'none'; connect-src 'self'; img-src 'self'; script-src 'self'; style-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

const (
	// reconnectAfter is how long a browser waits before it connects again.
	reconnectAfter = 2 * time.Second
	// writeTimeout is how long a browser may take to receive an update.
	writeTimeout = 30 * time.Second
)

// handler serves the page and the files that it loads.
type handler struct{ *collector }

// newHandler returns the handler for requests whose header Host is in hosts.
func newHandler(c *collector, hosts []string) http.Handler {
	h := handler{c}
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", h.page)
	mux.HandleFunc("/updates", h.updates)
	for _, name := range []string{"style.css", "script.js", "icon.svg"} {
		mux.HandleFunc("/"+name, func(w http.ResponseWriter, r *http.Request) {
			http.ServeFileFS(w, r, assets, "assets/"+name)
		})
	}
	return guard(hosts, mux)
}

// guard refuses requests that do not read, or that are for another host: a page of another
// site could have its own name resolve to this address.
func guard(hosts []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Cache-Control", "no-store")
		switch {
		case !slices.Contains(hosts, r.Host):
			http.Error(w, "this server serves other hosts", http.StatusMisdirectedRequest)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			header.Set("Allow", "GET, HEAD")
			http.Error(w, "this server only reads", http.StatusMethodNotAllowed)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// page serves the whole page.
func (h handler) page(w http.ResponseWriter, r *http.Request) {
	latest, err := h.after(r.Context(), 0)
	if err != nil {
		return
	}
	var page bytes.Buffer
	if err := renderPage(&page, &latest.view); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(page.Bytes())
}

// updates sends the part of the page that changes as server-sent events, after each read.
func (h handler) updates(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	if r.Method == http.MethodHead {
		return
	}
	out := http.NewResponseController(w)
	_, _ = fmt.Fprintf(w, "retry: %d\n\n", reconnectAfter.Milliseconds())
	if err := out.Flush(); err != nil {
		return
	}
	for version := 0; ; {
		latest, err := h.after(r.Context(), version)
		if err != nil {
			return
		}
		version = latest.version
		_ = out.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := w.Write(event(latest.fragment)); err != nil {
			return
		}
		if err := out.Flush(); err != nil {
			return
		}
	}
}

// event returns a server-sent event
// (https://html.spec.whatwg.org/multipage/server-sent-events.html).
func event(data []byte) []byte {
	var message bytes.Buffer
	for line := range bytes.Lines(data) {
		message.WriteString("data: ")
		message.Write(bytes.TrimRight(line, "\r\n"))
		message.WriteByte('\n')
	}
	message.WriteByte('\n')
	return message.Bytes()
}
