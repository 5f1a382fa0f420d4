// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package rotation

import "time"

const (
	// defaultStep is how long a step takes while no instance shows it.
	defaultStep = 10 * time.Minute
	// A Node may become Ready again long after its instance was created, so that the difference says
	// nothing about a step.
	minStep, maxStep = time.Minute, time.Hour
)

// Forecast returns how many steps are left, and whether the windows are open for long enough before an
// end. It is an estimate: each step takes as long as the newest instance took to be ready. A pause that
// may end at any time does not count.
func (p *Policy) Forecast(shards []Shard, now, end time.Time) (steps int, inTime bool) {
	var outdated int
	var newest Instance
	for i := range shards {
		outdated += int(shards[i].Outdated)
		for _, instance := range shards[i].Instances {
			if !instance.Outdated && instance.Ready && instance.Created.After(newest.Created) {
				newest = instance
			}
		}
	}
	step := defaultStep
	if !newest.Created.IsZero() {
		step = min(max(newest.ReadySince.Sub(newest.Created), minStep), maxStep)
	}
	atOnce := max(1, int(p.MaxSurge+p.MaxUnavailable))
	steps = (outdated + atOnce - 1) / atOnce
	return steps, p.openFor(time.Duration(steps)*(step+p.MinReady), now, end)
}

// openFor reports whether the windows are open for so long between two times.
func (p *Policy) openFor(wanted time.Duration, from, to time.Time) bool {
	for wanted > 0 && from.Before(to) {
		at, open := openUntil(p.Windows, from)
		switch {
		case at.IsZero() && !open:
			return false
		case at.IsZero(), at.After(to):
			at = to
		}
		if open {
			wanted -= at.Sub(from)
		}
		from = at
	}
	return wanted <= 0
}
