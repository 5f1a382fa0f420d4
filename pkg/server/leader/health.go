// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package leader

import (
	"net/http"
)

// Handler tells who leads, at /leader/health (server document) and at
// /health/leadership, where servers of other makes ask. The body is the lock as
// this server last saw it, all empty when it named nobody. The status is 200 when
// this server leads, else 503.
func (e *Elector) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /leader/health", e.answer)
	mux.HandleFunc("GET /health/leadership", e.answer)
	return mux
}

func (e *Elector) answer(w http.ResponseWriter, _ *http.Request) {
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
	// A client that hung up has its answer.
	_, _ = w.Write(data)
}
