// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package observe

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Process identifies a run of the container of a Pod. Counters begin at 0 in each run.
type Process struct {
	Pod      types.UID
	Restarts int32
}

// Reading is the value of a counter at a time.
type Reading struct {
	At time.Time
	// Total is nil if the node did not report the counter.
	Total *float64
}

type point struct {
	at    time.Time
	total float64
}

// MaxWindows is the maximum number of windows over which a rate is averaged.
const MaxWindows = 12

// Rates computes the command rate of each process, averaged over at least a window, so that
// it does not depend on how often the counters are read.
type Rates struct {
	window time.Duration
	points map[Process][]point
}

// NewRates returns Rates that have no readings yet.
func NewRates(window time.Duration) *Rates {
	return &Rates{window: window, points: map[Process][]point{}}
}

// Add adds the readings of all processes. It returns the sum of the known rates, nil if no
// rate is known, and whether every rate is known. It forgets processes that are missing in
// readings.
func (r *Rates) Add(readings map[Process]Reading) (rate *float64, complete bool) {
	for process := range r.points {
		if _, ok := readings[process]; !ok {
			delete(r.points, process)
		}
	}
	complete = len(readings) > 0
	for process, reading := range readings {
		of, known := r.add(process, reading)
		if !known {
			complete = false
			continue
		}
		if rate == nil {
			rate = new(float64)
		}
		*rate += of
	}
	return rate, complete
}

// add adds a reading, and returns the rate since the newest point that is at least one
// window old.
func (r *Rates) add(process Process, reading Reading) (rate float64, known bool) {
	if reading.Total == nil {
		return 0, false
	}
	now := point{reading.At, *reading.Total}
	points := slices.DeleteFunc(r.points[process], func(p point) bool {
		return now.at.Sub(p.at) > MaxWindows*r.window || now.total < p.total
	})
	base := -1
	for i, p := range points {
		if now.at.Sub(p.at) >= r.window {
			base = i
		}
	}
	if base >= 0 {
		rate, known = (now.total-points[base].total)/now.at.Sub(points[base].at).Seconds(), true
		points = points[base:]
	}
	// Skipping readings in quick succession bounds the number of points.
	if len(points) == 0 || now.at.Sub(points[len(points)-1].at) >= r.window/10 {
		points = append(points, now)
	}
	r.points[process] = slices.Clip(points)
	return rate, known
}

// buckets is the number of parts of a window. The history keeps the highest rate of each
// part.
const buckets = 60

// History remembers the highest rates of the last window.
type History struct {
	// gap is the longest time between two rates.
	gap time.Duration
	// window is the window of the last Add.
	window  time.Duration
	since   time.Time
	last    time.Time
	highest []point
}

// NewHistory returns an empty history. It starts again if two rates are more than gap
// apart.
func NewHistory(gap time.Duration) *History { return &History{gap: gap} }

// Add adds a rate. If the rate is nil, because a node did not report it, the history starts
// again.
func (h *History) Add(now time.Time, window time.Duration, rate *float64) {
	if rate == nil {
		*h = History{gap: h.gap}
		return
	}
	if h.since.IsZero() || now.Sub(h.last) > h.gap {
		*h = History{gap: h.gap, since: now}
	}
	// Rates that a shorter window has dropped may have been high.
	if remembered := now.Add(-h.window); window > h.window && h.since.Before(remembered) {
		h.since = remembered
	}
	h.last, h.window = now, window
	// A bucket is dropped by its end, so that a high rate is never forgotten too early.
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
