// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package observe

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// exposition returns the metrics of a node: the metrics in names, and as many other metrics
// as the store has.
func exposition() string {
	var text strings.Builder
	for i := range 60 {
		_, _ = fmt.Fprintf(&text, "marekvs_commands_total{cmd=\"command-%d\"} %d\n", i, 1_000_000+i)
	}
	for i := range 400 {
		_, _ = fmt.Fprintf(&text, "# TYPE marekvs_other_%d gauge\nmarekvs_other_%d{le=\"0.5\",shard=\"%d\"} %d\n", i, i, i, i)
	}
	text.WriteString("marekvs_cluster_members 8\nmarekvs_cluster_underreplicated_partitions 0\nmarekvs_ae_rounds_total 100\n" +
		"marekvs_cluster_effective_rf_min 2\nmarekvs_disk_total_bytes 1e10\nmarekvs_disk_avail_bytes 5e9\n")
	return text.String()
}

// BenchmarkScrapeCycle scrapes 100 clusters of 8 nodes once, 16 clusters at a time, as the
// controller does.
func BenchmarkScrapeCycle(b *testing.B) {
	const clusters, nodes, workers = 100, 8, 16
	// The operator scrapes each cluster in 10 s, and has a limit of memory of 128 MiB.
	const targetSeconds, targetMiB = 2.0, 64.0
	body := exposition()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, body) }))
	defer server.Close()
	s := NewScraper(ScrapeOptions{Port: server.Listener.Addr().(*net.TCPAddr).Port, Timeout: 3 * time.Second, Parallel: 128})
	b.ReportAllocs()
	for b.Loop() {
		var running sync.WaitGroup
		slots := make(chan struct{}, workers)
		for range clusters {
			slots <- struct{}{}
			running.Go(func() {
				defer func() { <-slots }()
				for _, got := range s.Scrape(b.Context(), slices.Repeat([]string{"127.0.0.1"}, nodes)) {
					if got.Err != nil {
						b.Error(got.Err)
					}
				}
			})
		}
		running.Wait()
	}
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	seconds := b.Elapsed().Seconds() / float64(b.N)
	mib := float64(memory.HeapSys) / (1 << 20)
	b.ReportMetric(1000*seconds, "ms/cycle")
	b.ReportMetric(mib, "MiB-heap")
	require.Less(b, seconds, targetSeconds)
	require.Less(b, mib, targetMiB)
}
