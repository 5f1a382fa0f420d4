// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

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

// health answers the probes.
type health struct {
	// synced is set once the Kubernetes caches are complete, on a standby too.
	synced   atomic.Bool
	watchdog *leaderelection.HealthzAdaptor
}

func newHealth() *health {
	return &health{watchdog: leaderelection.NewLeaderHealthzAdaptor(renewTolerance)}
}

// handler serves /healthz and /readyz, and passes other requests to other.
func (h *health) handler(other http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		answer(w, h.watchdog.Check(r))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !h.synced.Load() {
			answer(w, errors.New("caches are not complete yet"))
			return
		}
		answer(w, nil)
	})
	mux.Handle("/", other)
	return mux
}

// serve serves the handler at address until ctx is done. It returns once the
// address is bound.
func (h *health) serve(ctx context.Context, address string, other http.Handler) error {
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
