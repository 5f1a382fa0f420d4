// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package observe

import (
	"slices"
	"time"
)

// buckets is how many parts of the window the history remembers the highest rate of.
const buckets = 60

// History remembers the highest rates of a window.
type History struct {
	// gap is the longest time between two rates.
	gap time.Duration
	// window is the one that the rates are remembered for.
	window  time.Duration
	since   time.Time
	last    time.Time
	highest []point
}

// NewHistory returns an empty history. After a gap between two rates it begins again.
func NewHistory(gap time.Duration) *History { return &History{gap: gap} }

// Add adds a rate, nil if there was none or it was not complete: then the history begins
// again.
func (h *History) Add(now time.Time, window time.Duration, rate *float64) {
	if rate == nil {
		*h = History{gap: h.gap}
		return
	}
	if h.since.IsZero() || now.Sub(h.last) > h.gap {
		*h = History{gap: h.gap, since: now}
	}
	// What a shorter window has forgotten may have been high.
	if remembered := now.Add(-h.window); window > h.window && h.since.Before(remembered) {
		h.since = remembered
	}
	h.last, h.window = now, window
	// The end of a bucket counts, so that a high rate is never forgotten too early.
	h.highest = slices.DeleteFunc(h.highest, func(p point) bool { return now.Sub(p.at) > window+window/buckets })
	if n := len(h.highest); n > 0 && now.Sub(h.highest[n-1].at) < window/buckets {
		h.highest[n-1].total = max(h.highest[n-1].total, *rate)
		return
	}
	h.highest = append(h.highest, point{now, *rate})
}

// Peak returns the highest rate of a window that ends now, nil if the history is shorter.
func (h *History) Peak(now time.Time, window time.Duration) *float64 {
	if h.since.IsZero() || now.Sub(h.since) < window {
		return nil
	}
	peak := 0.0
	for _, p := range h.highest {
		peak = max(peak, p.total)
	}
	return &peak
}
