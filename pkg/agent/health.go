// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// readHeaderTimeout keeps clients that send nothing from piling up.
const readHeaderTimeout = 10 * time.Second

// health serves /healthz, which is that of the process, /readyz, and /metrics.
type health struct {
	metrics http.Handler

	mu sync.Mutex
	// ready is nil until the instance is registered.
	ready func() error
}

// setReady sets what returns why the agent is not ready.
func (h *health) setReady(ready func() error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ready = ready
}

func (h *health) checkReady() error {
	h.mu.Lock()
	ready := h.ready
	h.mu.Unlock()
	if ready == nil {
		return errors.New("the instance is not registered yet")
	}
	return ready()
}

// serve serves at address until ctx is done, and nothing if that is empty. It returns once
// the address is bound.
func (h *health) serve(ctx context.Context, address string) error {
	if address == "" {
		return nil
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen on --health-addr %s: %w", address, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, h.checkReady()) })
	mux.Handle("GET /metrics", h.metrics)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: readHeaderTimeout}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	go func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).Error(err, "HTTP server stopped", "address", address)
		}
	}()
	return nil
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprint(w, "ok")
}
