// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import "time"

// Link is the state of the watch of groups of a shard, for metrics. Times are by the clock
// of this process, and zero before the first.
type Link struct {
	// LastList is when the groups were last listed.
	LastList time.Time
	// LastMessage is when the watch was opened, or delivered its last event.
	LastMessage time.Time
	// Reconnects is how often the watch was opened after the first time.
	Reconnects int
}
