// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"slices"
	"sync"
	"time"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
)

// confirmations decide how long the managed instances of a group are left alone because
// some of them were missing when this server began to lead: an operator may send another
// size (docs/server.md#lost-objects).
type confirmations struct {
	mu sync.Mutex
	// first has the groups that existed when this server began to lead.
	first map[instance.GroupKey]*firstState
}

// firstState is what is known about the beginning of a group.
type firstState struct {
	// etag is that of the group when this server began to lead. An operator that has sent
	// another size has changed it.
	etag string
	// missing is when an instance was first known to be missing from the beginning. Some
	// providers take a while to confirm that.
	missing time.Time
}

// start adds a group.
func (c *confirmations) start(group *groups.Group) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.first == nil {
		c.first = map[instance.GroupKey]*firstState{}
	}
	c.first[group.Key] = &firstState{etag: group.ETag}
}

// waitFor returns how long the managed instances of a group are left alone.
func (c *confirmations) waitFor(group *groups.Group, instances []instance.Instance, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	first, existed := c.first[group.Key]
	if !existed || first.etag != group.ETag {
		return 0
	}
	if first.missing.IsZero() {
		if !slices.ContainsFunc(instances, isMissingFromBeginning) {
			return 0
		}
		first.missing = now
	}
	return max(0, confirmTimeout-now.Sub(first.missing))
}

// isMissingFromBeginning reports whether a managed instance has been missing since this
// server began to lead.
func isMissingFromBeginning(i instance.Instance) bool {
	return !i.OnDemand && i.State == instance.Missing && !i.Found && !i.BeingDeleted()
}
