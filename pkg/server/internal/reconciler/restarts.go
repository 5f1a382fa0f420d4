// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"sync"
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

// restarts remember since when instances have stopped that may be started again by the restart of
// their host (docs/server.md#reconciliation). A new leader begins again.
type restarts struct {
	mu      sync.Mutex
	byGroup map[instance.GroupKey]map[string]time.Time
}

// update returns the instances of a group that may still be started again, and when the next of
// them is over.
func (r *restarts) update(key instance.GroupKey, instances []instance.Instance, grace time.Duration, now time.Time) (restarting map[string]bool, next time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, since := r.byGroup[key], map[string]time.Time{}
	restarting = map[string]bool{}
	for n := range instances {
		i := &instances[n]
		if i.State != instance.Stopped || !i.MayReturn || i.BeingDeleted() {
			continue
		}
		began, known := before[i.ID]
		if !known {
			began = now
		}
		since[i.ID] = began
		if left := began.Add(grace).Sub(now); left > 0 {
			restarting[i.ID] = true
			if next == 0 || left < next {
				next = left
			}
		}
	}
	if r.byGroup == nil {
		r.byGroup = map[instance.GroupKey]map[string]time.Time{}
	}
	if r.byGroup[key] = since; len(since) == 0 {
		delete(r.byGroup, key)
	}
	return restarting, next
}
