// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package daemon has what every operator needs as a process: probes, metrics, and the
// default of the garbage collector.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"
)

const (
	// renewTolerance is how long after its deadline a lease that was not renewed
	// makes the process unhealthy.
	renewTolerance = 20 * time.Second
	// readHeaderTimeout keeps clients that send nothing from piling up.
	readHeaderTimeout = 10 * time.Second
)

// Health serves the probes.
type Health struct {
	// Synced is set once the Kubernetes caches are complete, on a standby too.
	Synced atomic.Bool
	// Watchdog checks that the lease of the leader is renewed.
	Watchdog *leaderelection.HealthzAdaptor
}

// NewHealth returns the health of a process whose caches are not complete.
func NewHealth() *Health {
	return &Health{Watchdog: leaderelection.NewLeaderHealthzAdaptor(renewTolerance)}
}

// handler serves /healthz and /readyz, and passes other requests to other.
func (h *Health) handler(other http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		answer(w, h.Watchdog.Check(r))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !h.Synced.Load() {
			answer(w, errors.New("caches are not complete yet"))
			return
		}
		answer(w, nil)
	})
	mux.Handle("/", other)
	return mux
}

// Serve serves the handler at address until ctx is done. It returns once the
// address is bound.
func (h *Health) Serve(ctx context.Context, address string, other http.Handler) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("listen on --http-address %s: %w", address, err)
	}
	server := &http.Server{Handler: h.handler(other), ReadHeaderTimeout: readHeaderTimeout}
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
