// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package observe

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Process is one run of the container of a Pod. Its counters begin at 0.
type Process struct {
	Pod      types.UID
	Restarts int32
}

// Reading is the value of a counter at a time.
type Reading struct {
	At time.Time
	// Total is nil if there is no signal.
	Total *float64
}

type point struct {
	at    time.Time
	total float64
}

// longest is how many windows a rate may be an average of.
const longest = 12

// Rates computes the rate of commands of each process, as the average of at least a window.
// It does not depend on how often the counters are read.
type Rates struct {
	window time.Duration
	points map[Process][]point
}

// NewRates returns rates without a reading.
func NewRates(window time.Duration) *Rates {
	return &Rates{window: window, points: map[Process][]point{}}
}

// Add adds the readings of all processes, and returns the sum of the rates that are known,
// nil if none is, and whether all of them are. A process that is missing is forgotten.
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

// add adds a reading, and returns the rate since the newest point that is at least a window
// old.
func (r *Rates) add(process Process, reading Reading) (rate float64, known bool) {
	if reading.Total == nil {
		return 0, false
	}
	now := point{reading.At, *reading.Total}
	points := slices.DeleteFunc(r.points[process], func(p point) bool {
		return now.at.Sub(p.at) > longest*r.window || now.total < p.total
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
	// Readings that follow each other fast add nothing.
	if len(points) == 0 || now.at.Sub(points[len(points)-1].at) >= r.window/10 {
		points = append(points, now)
	}
	r.points[process] = slices.Clip(points)
	return rate, known
}
