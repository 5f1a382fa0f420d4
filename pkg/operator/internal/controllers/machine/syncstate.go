// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"math"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
)

// The delays between calls to a shard until it reports the final state of an
// instance.
var (
	queryBackoff  = wait.Backoff{Duration: time.Second, Factor: 2, Cap: 30 * time.Second, Steps: math.MaxInt}
	deleteBackoff = wait.Backoff{Duration: time.Second, Factor: 2, Cap: 10 * time.Second, Steps: math.MaxInt}
)

// unverified is lower than every session.
const unverified = -1

// syncState is what a sync of an NstanceMachine passes on to the next. All of it
// may be lost, as in a restart: then the shard is queried once more. It needs no
// lock, because only one sync of an NstanceMachine runs at a time.
type syncState struct {
	uid types.UID
	// instanceID is the id in the reply to the create request. The request is not
	// repeated, because some servers would create another instance.
	instanceID string
	// rejection is the last rejection of the create request, nil when there was none.
	rejection *rejection
	// declined are the rejections by shards that have declined the create request.
	declined map[string]rejection
	// located: the last write of the shard was made by this process.
	located bool
	// queries and deletions are the calls while the instance starts or terminates.
	queries, deletions retry
	// deletionAccepted: the shard has accepted a deletion that this process has requested.
	deletionAccepted bool
	// waitingForPool is since when the deletion of the instance waits for its pool,
	// zero while it does not.
	waitingForPool time.Time
	// verifiedSession is the session of the watch of notices in which the instance was
	// queried last. Later changes are reported by the watch. It is unverified when the
	// instance must be queried in any case.
	verifiedSession int64
	// node is the Node that matches the provider id, and nodeSince is since when.
	node      types.UID
	nodeSince time.Time
	// ambiguous: more than one Node matches, and that was reported.
	ambiguous bool
}

// rejection is the rejection of a create request by the shard. The request is not
// repeated until the group on the shard changes or the time is over.
type rejection struct {
	etag    string
	until   time.Time
	reason  string
	message string
	// declined: the shard has no instance for the request.
	declined bool
	// noCapacity is how often in succession the shard had no capacity.
	noCapacity int
}

// applies reports whether the request would be rejected for the same reason.
func (r *rejection) applies(etag string, now time.Time) bool {
	return r != nil && r.etag == etag && now.Before(r.until)
}

// retry schedules calls of one kind. The first is due at once.
type retry struct {
	wait.Backoff
	next time.Time
}

// schedule sets the time of the next call, and returns the delay.
func (r *retry) schedule(now time.Time) time.Duration {
	delay := r.Step()
	r.next = now.Add(delay)
	return delay
}

// remaining returns the time until the next call, zero or less when it is due.
func (r *retry) remaining(now time.Time) time.Duration { return r.next.Sub(now) }

// syncState returns the state of an NstanceMachine. The state of a former one with
// the same name is dropped.
func (c *Controller) syncState(key cache.ObjectName, uid types.UID) *syncState {
	c.syncStatesMu.Lock()
	defer c.syncStatesMu.Unlock()
	if c.syncStates[key] == nil || c.syncStates[key].uid != uid {
		c.syncStates[key] = &syncState{
			uid:       uid,
			queries:   retry{Backoff: queryBackoff},
			deletions: retry{Backoff: deleteBackoff},
		}
	}
	return c.syncStates[key]
}

func (c *Controller) dropSyncState(key cache.ObjectName) {
	c.syncStatesMu.Lock()
	defer c.syncStatesMu.Unlock()
	if state := c.syncStates[key]; state != nil {
		c.providerErrors.drop(state.uid)
	}
	delete(c.syncStates, key)
}
