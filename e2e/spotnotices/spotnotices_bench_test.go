// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package spotnotices

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// mostDelay is the target: how long after a notice a replacement is requested and the Node
// cordoned.
const mostDelay = 5 * time.Second

// BenchmarkSpotNotices50 announces the termination of 50 machines at once. It measures from
// the moment when their metadata services have the notices to the moments when the API
// server has the cordoned Nodes, and the Nodes of the requested replacements.
func BenchmarkSpotNotices50(b *testing.B) {
	for b.Loop() {
		result := announce(b, silent{b}, "bench", fullMachines)
		b.ReportMetric(milliseconds(result.cordons, 50), "cordon-p50-ms")
		b.ReportMetric(milliseconds(result.cordons, 99), "cordon-p99-ms")
		b.ReportMetric(milliseconds(result.replacements, 50), "replacement-p50-ms")
		b.ReportMetric(milliseconds(result.replacements, 99), "replacement-p99-ms")
		most := float64(mostDelay.Milliseconds())
		require.LessOrEqual(b, milliseconds(result.cordons, 99), most, "ms until the Nodes were cordoned")
		require.LessOrEqual(b, milliseconds(result.replacements, 99), most, "ms until the replacements were requested")
	}
}

// milliseconds returns a percentile: the smallest delay that so many percent do not exceed.
func milliseconds(sorted []time.Duration, percent int) float64 {
	rank := (len(sorted)*percent + 99) / 100
	return float64(sorted[rank-1].Microseconds()) / 1000
}

// silent discards the log of the server, which would be part of the result.
type silent struct{ testing.TB }

// Log does nothing.
func (silent) Log(...any) {}
