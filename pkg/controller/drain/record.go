// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/providerid"
	"nstance.dev/operator/pkg/shard"
)

// record is what is remembered of a drain while its notice stands. A process that
// has none of it reads some things again, and does nothing else again.
type record struct {
	// machine is the key of the provider id that the record is indexed by. It
	// belongs to the controller's lock.
	machine string

	mu sync.Mutex
	// began is when the drain did: as the shard says, else when it was first seen.
	began  time.Time
	reason string
	watch  *podWatch
	// known are the Pods of which it has been found out whether they have to leave,
	// leaving those that have to.
	known, leaving sets.Set[types.UID]
	// emptySince is since when none of these was left.
	emptySince time.Time
	// listAfter is when the Pods may be listed again.
	listAfter time.Time
	// acknowledged is the announcement that was last acknowledged, calling tells
	// that an acknowledgement is under way, concluded that there was one.
	acknowledged int64
	calling      bool
	concluded    bool
	// failures is how many acknowledgements in a row have failed, callAfter when the
	// next may be tried: each costs a list of the Pods.
	failures  int
	callAfter time.Time
	// reported: there was an event about what keeps the Node from being drained.
	reported bool
}

// recordOf is the record of a drain, made when there is none.
func (c *Controller) recordOf(key cache.ObjectName, notice *shard.Notice) *record {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.records[key]
	if !ok {
		r = &record{began: notice.Since, reason: notice.Reason}
		if r.began.IsZero() {
			r.began = c.clock.Now()
		}
		c.records[key] = r
	}
	c.index(key, r, providerid.Key(notice.ProviderID))
	return r
}

// existing is the record of a drain, nil when there is none.
func (c *Controller) existing(key cache.ObjectName) *record {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.records[key]
}

func (c *Controller) remove(key cache.ObjectName, r *record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.records, key)
	c.index(key, r, "")
}

// index finds the record by machine from now on, "" for by none. It is called
// with the lock.
func (c *Controller) index(key cache.ObjectName, r *record, machine string) {
	if r.machine == machine {
		return
	}
	if keys := c.byMachine[r.machine]; keys.Delete(key).Len() == 0 {
		delete(c.byMachine, r.machine)
	}
	r.machine = machine
	if machine == "" {
		return
	}
	if c.byMachine[machine] == nil {
		c.byMachine[machine] = sets.New[cache.ObjectName]()
	}
	c.byMachine[machine].Insert(key)
}

// acknowledgedFor tells whether the announcement of that number was acknowledged.
func (r *record) acknowledgedFor(announced int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.concluded && r.acknowledged >= announced
}

// isConcluded tells whether the drain was acknowledged at all.
func (r *record) isConcluded() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.concluded
}

// conclude notes an acknowledgement, and tells whether it was the first.
func (r *record) conclude(announced int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := !r.concluded
	r.concluded, r.calling, r.acknowledged, r.failures = true, false, announced, 0
	return first
}

// setCalling notes that an acknowledgement is under way.
func (r *record) setCalling() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calling = true
}

// lastCall is the longest time between two tries to acknowledge.
const lastCall = 16 * time.Second

// callFailed notes that an acknowledgement has failed. The next has to wait longer.
func (r *record) callFailed(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calling = false
	r.callAfter = now.Add(min(time.Second<<min(r.failures, 8), lastCall))
	r.failures++
}

// earlyToCall is how long an acknowledgement has to wait, not positive for not at
// all.
func (r *record) earlyToCall(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.callAfter.Sub(now)
}

// ended tells whether the end of the drain is or will be counted by the call that
// acknowledges it.
func (r *record) ended() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.concluded || r.calling
}

// becomesReported notes whether there is something to report, and tells whether
// that is new.
func (r *record) becomesReported(trouble bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	fresh := trouble && !r.reported
	r.reported = trouble
	return fresh
}
