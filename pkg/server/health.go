// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// health answers at the health address: /health and / for those that ask
// whether the server serves, /metrics for those that ask what it did.
type health struct {
	// ready tells whether the server does its part: it serves operators, or
	// stands by for a server that does.
	ready   func() bool
	handler *http.ServeMux
}

func newHealth(metrics prometheus.Gatherer, ready func() bool) *health {
	h := &health{ready: ready, handler: http.NewServeMux()}
	h.handler.HandleFunc("GET /health", h.answer)
	h.handler.HandleFunc("GET /{$}", h.answer)
	h.handler.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	return h
}

// answer: 200 with the body ok and no line break, else 503 (wire contract).
func (h *health) answer(w http.ResponseWriter, _ *http.Request) {
	if !h.ready() {
		http.Error(w, "not ready", http.StatusServiceUnavailable)
		return
	}
	// A client that hung up has its answer.
	_, _ = w.Write([]byte("ok"))
}

// serve answers until ctx ends.
func (h *health) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{Handler: h.handler, ReadHeaderTimeout: 5 * time.Second}
	// Checks and scrapes can be asked again: nobody is waited for.
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving health checks at %s: %w", listener.Addr(), err)
	}
	return nil
}
