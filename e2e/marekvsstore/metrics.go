// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package marekvsstore

import (
	"fmt"
	"net"
	"net/http"
	"time"
)

// serve writes the metrics of the Pod whose address was called.
func (s *Store) serve(w http.ResponseWriter, r *http.Request) {
	host, _, _ := net.SplitHostPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pods[host]
	if p == nil || s.silent[p.pod] {
		http.Error(w, "silent", http.StatusServiceUnavailable)
		return
	}
	p.scrapes++
	members, c, now := len(s.online(p.cluster)), s.cluster(p.cluster), time.Now()
	p.commands += c.rate / float64(max(members, 1)) * now.Sub(p.last).Seconds()
	p.last = now
	_, _ = fmt.Fprintf(w, "marekvs_commands_total{cmd=\"get\"} %d\nmarekvs_cluster_members %d\nmarekvs_ae_rounds_total %d\n"+
		"marekvs_cluster_underreplicated_partitions %d\n", int64(p.commands), members, p.node.Rounds, c.under)
}

// Scrapes returns how many times the metrics of a Pod were read since its container started.
func (s *Store) Scrapes(pod string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.running(pod); p != nil {
		return p.scrapes
	}
	return 0
}

// running returns the process of a Pod that is not being deleted.
func (s *Store) running(pod string) *process {
	for _, p := range s.pods {
		if p.pod == pod && p.stops.IsZero() {
			return p
		}
	}
	return nil
}
