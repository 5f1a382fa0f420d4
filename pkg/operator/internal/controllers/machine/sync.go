// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"errors"
	"time"

	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/shard"
)

// sync does one step. The change that it writes enqueues the NstanceMachine for the
// next.
func (c *Controller) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	nstanceMachine, err := controller.GetCached(c.nstanceMachineLister.Get, "NstanceMachine", key)
	if err != nil {
		return 0, err
	}
	if nstanceMachine == nil {
		c.dropSyncState(key)
		return 0, nil
	}
	if !nstanceMachine.DeletionTimestamp.IsZero() && !hasFinalizer(nstanceMachine) {
		// Only finalizers of others are left.
		return 0, nil
	}
	if !c.writes.CaughtUp(key) {
		return controller.StaleRetry, nil
	}
	observed, err := c.observe(ctx, nstanceMachine)
	if err != nil {
		return 0, err
	}
	state := c.syncState(key, nstanceMachine.UID)
	if observed.paused != "" || observed.notice != nil && observed.notice.State == shard.Deleted {
		// There is one notice of the deletion, and it may be removed from the cache
		// before the pause is over, or before the deletion is in the status. A server
		// without notices reports none during the pause.
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
	// shard is the shard that was chosen for the instance.
	shard string
	// instanceID is the id of the instance that was requested.
	instanceID string
	// instance is the instance as the shard has just reported it, nil when it has not.
	instance *shard.Instance
	// lost: the shard does not have the instance.
	lost bool
	// problem is why the next step cannot be done.
	problem *problem
	// wait is the delay until the next sync.
	wait time.Duration
	// final: the NstanceMachine is being deleted or has lost its finalizer, and there
	// is nothing to report.
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

// shortest returns the shorter of two delays. Zero is no delay.
func shortest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
