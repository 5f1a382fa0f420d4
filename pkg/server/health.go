// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"nstance.dev/operator/pkg/base/httpserver"
)

// health serves the health address (docs/server-reference.md#health): /health and / for
// probes, /metrics for Prometheus.
type health struct {
	// ready reports whether the server serves operators, or stands by for a server
	// that does.
	ready func() bool
	// blocked returns why the server does not serve although it leads, nil if no reason is
	// known.
	blocked func() error
	// rejected returns why the configuration in the storage is not in force, nil if it is.
	rejected func() error
	handler  *http.ServeMux
}

func newHealth(metrics prometheus.Gatherer, ready func() bool, blocked, rejected func() error) *health {
	h := &health{ready: ready, blocked: blocked, rejected: rejected, handler: http.NewServeMux()}
	h.handler.HandleFunc("GET /health", h.probe)
	h.handler.HandleFunc("GET /{$}", h.probe)
	h.handler.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	return h
}

// probe responds 200 with the body "ok" and no line break, or 503 and the reason. After "ok"
// follows why a configuration was rejected.
func (h *health) probe(w http.ResponseWriter, _ *http.Request) {
	if !h.ready() {
		message := "not ready"
		if err := h.blocked(); err != nil {
			message += ": " + err.Error()
		}
		http.Error(w, message, http.StatusServiceUnavailable)
		return
	}
	message := "ok"
	if err := h.rejected(); err != nil {
		message += ", but the configuration was rejected and an earlier one is in force: " + err.Error() + "\n"
	}
	// A client that disconnected needs no response.
	_, _ = w.Write([]byte(message))
}

// serve serves until ctx is done.
func (h *health) serve(ctx context.Context, listener net.Listener) error {
	if err := httpserver.Serve(ctx, listener, nil, h.handler); err != nil {
		return fmt.Errorf("serve health checks: %w", err)
	}
	return nil
}
