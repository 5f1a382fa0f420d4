// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"testing"
	"time"

	"nstance.dev/operator/pkg/testing/tier"
)

// WithoutLog returns t without its log. A server of a benchmark would log into the results,
// because go test prints the whole log of a benchmark.
func WithoutLog(t testing.TB) testing.TB { return withoutLog{t} }

type withoutLog struct{ testing.TB }

func (withoutLog) Log(...any) {}

// PercentileMilliseconds returns the smallest of the sorted delays that so many percent do
// not exceed.
func PercentileMilliseconds(sorted []time.Duration, percent int) float64 {
	rank := (len(sorted)*percent + 99) / 100
	return float64(sorted[rank-1].Microseconds()) / 1000
}

// SkipUnlessFull skips a test that only make test-full runs.
func SkipUnlessFull(t testing.TB) {
	t.Helper()
	if !tier.Full() {
		t.Skip("make test-full runs this test")
	}
}
