// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"errors"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/shard"
)

// sync carries out one step. Its write enqueues the NstanceMachine for the next step.
func (c *Controller) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	if !c.writes.CaughtUp(key) {
		return c.writes.Delay(key), nil
	}
	nstanceMachine, err := controller.GetCached(c.nstanceMachineLister.Get, "NstanceMachine", key)
	if err != nil {
		return 0, err
	}
	if nstanceMachine == nil {
		c.dropSyncState(key)
		return 0, nil
	}
	if !nstanceMachine.DeletionTimestamp.IsZero() && !hasFinalizer(nstanceMachine) {
		// Other controllers' finalizers block the deletion.
		return 0, nil
	}
	observed, err := c.observe(ctx, nstanceMachine)
	if err != nil {
		return 0, err
	}
	state := c.syncState(key, nstanceMachine.UID)
	if observed.paused != "" || observed.notice != nil && observed.notice.State == shard.Deleted {
		// The notice of the deletion may be removed from the cache before the pause is over,
		// or before the deletion is in the status. A server without notices sends no notice
		// during the pause.
		state.verifiedSession = unverified
	}
	decided := plan(observed, *state)
	if decided.step != deleteInstance {
		// Only an uninterrupted wait counts.
		state.waitingForPool = time.Time{}
	}
	done := c.act(ctx, observed, decided, state)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if done.final {
		return 0, done.err
	}
	if ready(nstanceMachine) || done.instance != nil && usable(done.instance) {
		c.providerErrors.drop(nstanceMachine.UID)
	}
	wait, err := c.report(ctx, observed, done, state)
	return shortest(wait, done.wait), errors.Join(done.err, err)
}

// outcome is the result of a step.
type outcome struct {
	// shard is the shard that was chosen in this sync, "" without a choice.
	shard string
	// instanceID is the id in the reply to the create request.
	instanceID string
	// instance is the instance in the shard's reply, nil without a reply.
	instance *shard.Instance
	// lost: the shard does not have the instance.
	lost bool
	// problem prevents the next step.
	problem *problem
	// wait is the delay until the next sync.
	wait time.Duration
	// final: the NstanceMachine is being deleted or has lost its finalizer, so that its status
	// need not be written.
	final bool
	err   error
}

// act carries out a decision.
func (c *Controller) act(ctx context.Context, observed observation, decided decision, state *syncState) outcome {
	switch decided.step {
	case assignShard:
		chosen, blocked := c.place(observed, nil)
		return outcome{shard: chosen, problem: blocked}
	case reassignShard:
		if chosen := c.reassign(ctx, observed, state); chosen != "" {
			return outcome{shard: chosen}
		}
		return outcome{problem: decided.problem, wait: decided.wait}
	case createInstance:
		return c.createInstance(ctx, observed, state)
	case useListed:
		state.queries = retry{Backoff: queryBackoff}
		return outcome{instance: observed.listed}
	case queryInstance:
		return c.queryInstance(ctx, observed, state)
	case deleteInstance:
		return c.deleteInstance(ctx, observed, state)
	case removeFinalizer:
		return outcome{final: true, err: c.removeFinalizer(ctx, observed.nstanceMachine)}
	case abandonInstance:
		return outcome{final: true, err: c.abandon(ctx, observed)}
	case deleteMachine:
		return outcome{err: c.deleteMachine(ctx, observed.machine)}
	case deleteNstanceMachine:
		return outcome{final: true, err: c.deleteNstanceMachine(ctx, observed.nstanceMachine)}
	default:
		return outcome{problem: decided.problem, wait: decided.wait}
	}
}

// shortest returns the shorter delay. Zero means no delay was requested.
func shortest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// Delays between calls to a shard until it reports the final state of an instance.
var (
	queryBackoff  = wait.Backoff{Duration: time.Second, Factor: 2, Cap: 30 * time.Second, Steps: math.MaxInt}
	deleteBackoff = wait.Backoff{Duration: time.Second, Factor: 2, Cap: 10 * time.Second, Steps: math.MaxInt}
)

// unverified is lower than every session, so that the instance is queried.
const unverified = -1

// syncState is the state that a sync of an NstanceMachine passes to the next sync. A restart
// may lose it: the shard is then queried again. It needs no lock, because only one sync of an
// NstanceMachine runs at a time.
type syncState struct {
	uid types.UID
	// instanceID is the id in the reply to the create request. The request is not repeated,
	// because some servers would create another instance.
	instanceID string
	// rejection is the last rejection of the create request, nil without a rejection.
	rejection *rejection
	// declined are the rejections of the create request by former shards.
	declined map[string]rejection
	// located: this process has written the shard in the status.
	located bool
	// queries and deletions schedule the calls while the instance starts or terminates.
	queries, deletions retry
	// deletionAccepted: the shard has accepted a deletion that this process has requested.
	deletionAccepted bool
	// waitingForPool is since when the deletion of the instance waits for its pool, zero if it
	// does not wait.
	waitingForPool time.Time
	// verifiedSession is the session of the watch of notices in which the instance was queried
	// last; the watch reports later changes. It is unverified if the instance must be queried
	// in any case.
	verifiedSession int64
	// node is the Node that matches the provider id since nodeSince.
	node      types.UID
	nodeSince time.Time
	// nodeProblem is the reason of the last event about the Nodes that match, "" if there is no
	// such problem now.
	nodeProblem string
}

// rejection is the shard's rejection of a create request. The request is not repeated before
// until, unless the group on the shard changes.
type rejection struct {
	etag    string
	until   time.Time
	reason  string
	message string
	// declined: the shard has declined the request, and has no instance for it.
	declined bool
	// noCapacity counts successive rejections for lack of capacity.
	noCapacity int
}

// applies reports whether the request would be rejected again for the same reason.
func (r *rejection) applies(etag string, now time.Time) bool {
	return r != nil && r.etag == etag && now.Before(r.until)
}

// retry schedules repeated calls with a backoff. The first call is due at once.
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

// syncState returns the state of an NstanceMachine. It drops the state of a former
// NstanceMachine with the same name.
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
