// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agenthealth

import (
	"fmt"
	"time"
)

// followUps are the times after the end of a stream at which the provider is queried again.
// After the last query the agent counts as lost (docs/server.md#agents).
var followUps = cumulative(3, 6, 12, 24, 30, 30, 30, 30)

// laterFollowUp is how often the provider is queried after the last of followUps.
const laterFollowUp = 30 * time.Second

// maxMissed is how many missed reports make an agent count as lost, although its stream
// is open.
const maxMissed = 3

func cumulative(seconds ...int) []time.Duration {
	times := make([]time.Duration, len(seconds))
	total := time.Duration(0)
	for n, s := range seconds {
		total += time.Duration(s) * time.Second
		times[n] = total
	}
	return times
}

// link is the connection of one agent.
type link struct {
	// connected is true while the agent has a stream with a report.
	connected bool
	// from is when the present silence began: the last report or, after that, the end of
	// the stream. It may be in the future.
	from time.Time
	// checks is how often the provider was queried since.
	checks int
}

// restart begins another silence.
func (l *link) restart(from time.Time) {
	l.from, l.checks = from, 0
}

// missed returns how many reports are missing. A report may be late by half an interval.
func (l *link) missed(now time.Time, interval time.Duration) int {
	late := now.Sub(l.from) - interval/2
	if !l.connected || late < 0 {
		return 0
	}
	return int(late / interval)
}

// silent reports whether an agent does not report as it should.
func (l *link) silent(now time.Time, interval time.Duration) bool {
	return !l.connected || l.missed(now, interval) > 0
}

// step advances to a moment. It reports whether to query the provider now, and why the agent
// counts as lost, "" if it does not.
func (l *link) step(now time.Time, interval time.Duration) (check bool, lost string) {
	if l.connected {
		missed := l.missed(now, interval)
		if check = missed > l.checks; check {
			l.checks = missed
		}
		if missed >= maxMissed {
			lost = fmt.Sprintf("its agent has missed %d reports, one of which is expected every %s", missed, interval)
		}
		return check, lost
	}
	silent := now.Sub(l.from)
	for silent >= followUp(l.checks) {
		l.checks++
		check = true
	}
	if l.checks >= len(followUps) {
		lost = fmt.Sprintf("its agent has not been connected for %s", silent.Round(time.Second))
	}
	return check, lost
}

// followUp returns the length of the silence after which the provider is queried for the nth
// time.
func followUp(n int) time.Duration {
	last := len(followUps) - 1
	if n <= last {
		return followUps[n]
	}
	return followUps[last] + time.Duration(n-last)*laterFollowUp
}
