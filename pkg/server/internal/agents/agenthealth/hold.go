// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agenthealth

import "time"

const (
	// If at least minSilent agents are silent at the same time, and they are a third of
	// all, the server or a part of its network is more likely at fault than they are.
	// Then none of them counts as lost before holdLimit.
	minSilent  = 3
	silentPart = 3
	holdLimit  = 15 * time.Minute
)

// hold is the period in which too many agents are silent to judge them.
type hold struct {
	// since is when it began, zero if there is none.
	since time.Time
	// reported is true after its effect was reported.
	reported bool
}

// update decides by the number of silent agents among all those expected whether the
// period begins or continues. It reports whether one is over: the agents that are still
// silent then begin their silence anew, since most others have come back only now.
func (h *hold) update(silent, expected int, now time.Time) (over bool) {
	tooMany := silent >= minSilent && silent*silentPart >= expected
	switch {
	case tooMany && h.since.IsZero():
		*h = hold{since: now}
	case !tooMany && !h.since.IsZero():
		*h = hold{}
		return true
	}
	return false
}

// active reports whether no agent may be judged.
func (h *hold) active(now time.Time) bool {
	return !h.since.IsZero() && now.Sub(h.since) < holdLimit
}
