// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"fmt"
	"net/http"
	"sync/atomic"
)

type counter struct{ n atomic.Int64 }

func (c *counter) add()         { c.n.Add(1) }
func (c *counter) value() int64 { return c.n.Load() }

// probes serves the kubelet and the operator.
func (n *node) probes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /alive", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if !n.members.ready() {
			http.Error(w, "joining", http.StatusServiceUnavailable)
		}
	})
	// The kubelet sends SIGTERM when it has the response.
	mux.HandleFunc("GET /drain", func(http.ResponseWriter, *http.Request) { n.leave() })
	mux.HandleFunc("GET /metrics", n.serveMetrics)
	return mux
}

func (n *node) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	active := len(n.members.active())
	under, joining := 0, 0
	if active < n.replicas {
		under = partitions
	}
	if n.rounds.value() == 0 {
		joining = partitions
	}
	used, err := n.volume.size()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	for name, count := range n.commands {
		fmt.Fprintf(w, "marekvs_commands_total{cmd=%q} %d\n", name, count.value())
	}
	for _, metric := range []struct {
		name  string
		value int64
	}{
		{"marekvs_cluster_members", int64(active)},
		{"marekvs_cluster_effective_rf_min", int64(min(active, n.replicas))},
		{"marekvs_cluster_underreplicated_partitions", int64(under)},
		{"marekvs_join_gate_pending_pids", int64(joining)},
		{"marekvs_ae_rounds_total", n.rounds.value()},
		{"marekvs_disk_total_bytes", volumeSize},
		{"marekvs_disk_avail_bytes", volumeSize - used},
		{"marekvs_disk_write_stopped", 0},
	} {
		fmt.Fprintf(w, "%s %d\n", metric.name, metric.value)
	}
}
