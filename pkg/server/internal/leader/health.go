// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader

import (
	"net/http"
)

// Handler serves the current leader at /leader/health and at
// /health/leadership, which other implementations of the server query
// (docs/server.md#leader-election). The body is the lock as this server last
// observed it, with empty fields when it names no leader. The status is 200
// when this server leads, else 503.
func (e *Elector) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /leader/health", e.serveHealth)
	mux.HandleFunc("GET /health/leadership", e.serveHealth)
	return mux
}

func (e *Elector) serveHealth(w http.ResponseWriter, _ *http.Request) {
	status := http.StatusServiceUnavailable
	if e.Leading() {
		status = http.StatusOK
	}
	lock, _ := e.Leader()
	data, err := encodeLock(lock)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	// A write error only means that the client has disconnected.
	_, _ = w.Write(data)
}
