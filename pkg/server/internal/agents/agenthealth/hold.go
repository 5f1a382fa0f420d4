// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agenthealth

import (
	"fmt"
	"time"
)

// If many agents are silent at the same time, the server or a part of its network is more likely at
// fault than the agents, and replacing their instances would destroy what works. Then no agent
// counts as lost: while more than half are silent without a limit, and if at least minSilent agents
// and a silentPart of all are, up to holdLimit.
const (
	minSilent  = 3
	silentPart = 3
	holdLimit  = 15 * time.Minute
)

// hold is the period in which too many agents are silent to judge them.
type hold struct {
	// since is when the period began, or the zero time.
	since time.Time
	// unlimited is true while more than half of the agents are silent.
	unlimited bool
	// reported is true after the effect of the period, with its present limit, was reported.
	reported bool
}

// update decides by the number of silent agents among all expected agents whether the period
// begins or continues. It reports whether a period is over: the agents that are still silent
// then begin their silence anew, since most others have come back only now.
func (h *hold) update(silent, expected int, now time.Time) (over bool) {
	unlimited := 2*silent > expected
	if !unlimited && (silent < minSilent || silent*silentPart < expected) {
		over = !h.since.IsZero()
		*h = hold{}
		return over
	}
	if h.since.IsZero() || h.unlimited && !unlimited {
		// The limit begins when it applies: no agent could be judged before.
		h.since = now
	}
	h.reported = h.reported && h.unlimited == unlimited
	h.unlimited = unlimited
	return false
}

// active reports whether no agent may be judged.
func (h *hold) active(now time.Time) bool {
	return !h.since.IsZero() && (h.unlimited || now.Sub(h.since) < holdLimit)
}

// failure is the error for operators.
func (h *hold) failure(silent, expected int) error {
	const exception = "unless its provider reports that it does not run"
	if h.unlimited {
		return fmt.Errorf("%d of %d agents do not report: none of their instances is replaced, %s, before half of the agents report or an administrator deletes the instances",
			silent, expected, exception)
	}
	return fmt.Errorf("%d of %d agents do not report: none of their instances is replaced for up to %s, %s", silent, expected, holdLimit, exception)
}
