// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"sync"
	"time"
)

// attempts are when instances were last ordered that the provider did not know
// afterwards, by instance id. They are dropped with the instance. A server that
// takes over has made none, and so tries for itself before it gives up what it
// finds.
type attempts struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// of returns the zero time for an instance that was not tried.
func (a *attempts) of(id string) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last[id]
}

func (a *attempts) note(id string, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last == nil {
		a.last = map[string]time.Time{}
	}
	a.last[id] = at
}

func (a *attempts) drop(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.last, id)
}
