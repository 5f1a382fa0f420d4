// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"sync"
	"time"
)

// attempts contains, by instance id, when this server last tried to create an
// instance that the provider did not list afterwards. Entries are removed
// together with the instance. A new leader starts without attempts, and so
// tries once itself before it gives up an instance that it finds.
type attempts struct {
	mu   sync.Mutex
	last map[string]time.Time
}

// of returns the zero time for an instance without an attempt.
func (a *attempts) of(id string) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last[id]
}

func (a *attempts) set(id string, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last == nil {
		a.last = map[string]time.Time{}
	}
	a.last[id] = at
}

func (a *attempts) remove(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.last, id)
}
