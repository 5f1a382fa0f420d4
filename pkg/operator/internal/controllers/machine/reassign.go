// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// A shard that declines a create request (shard.IsDeclined) has no instance for it. Only
// then may another shard be chosen: after every other error the instance may exist.

// movable reports whether the operator has chosen the shard of an NstanceMachine, and may
// choose another one.
func movable(observed observation) bool {
	return !observed.poolMember && observed.nstanceMachine.Spec.Shard == "" &&
		observed.machine != nil && observed.machine.Spec.FailureDomain == ""
}

// reassign chooses another shard for an NstanceMachine whose request the shard has
// declined. It returns "" while the other shards cannot be used, or have declined it too.
func (c *Controller) reassign(ctx context.Context, observed observation, state *syncState) string {
	if state.declined == nil {
		state.declined = make(map[string]rejection)
	}
	state.declined[observed.shardID] = *state.rejection
	chosen, blocked := c.place(observed, state.declined)
	if blocked != nil {
		return ""
	}
	klog.FromContext(ctx).Info("Another shard chosen, because the shard has declined the request",
		"shard", chosen, "declinedBy", observed.shardID, "message", state.rejection.message)
	state.rejection, state.located = nil, false
	return chosen
}

// checkLocation returns an error unless the cache has the present version of an
// NstanceMachine. Its shard may change, and a request that is sent to a former shard would
// create a second instance. The cache need not be checked if this process has written the
// location: it is not used before it shows that write.
func (c *Controller) checkLocation(ctx context.Context, observed observation, state *syncState) error {
	if state.located || !movable(observed) {
		return nil
	}
	cached := observed.nstanceMachine
	current, err := c.nstanceMachines.Get(ctx, cached.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read NstanceMachine %s: %w", klog.KObj(cached), err)
	}
	if at := locate(current); current.UID != cached.UID || at.shardID != observed.shardID || at.requestID != observed.requestID {
		return fmt.Errorf("the cache does not show that NstanceMachine %s is on shard %q", klog.KObj(cached), locate(current).shardID)
	}
	return nil
}

// declinedBy reports whether a shard has declined the request, and would do so again.
func declinedBy(declined map[string]rejection, shard, etag string, observed observation) bool {
	last, found := declined[shard]
	return found && last.applies(etag, observed.now)
}
