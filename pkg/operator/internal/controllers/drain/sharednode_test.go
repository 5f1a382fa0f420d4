// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"testing"
	"testing/synctest"
	"time"

	"nstance.dev/operator/pkg/operator/shard"
)

// A server that is configured as two shards reports everything twice.
func TestTwoInstancesMayClaimOneNode(t *testing.T) {
	for name, withdrawn := range map[string]string{"the first is withdrawn": "a", "the second is withdrawn": "b"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, newNode("n1"), newPod("web-0", "n1"), newPod("web-1", "n1"))
				h.rejectEviction = func(string) error { return errBudget }
				h.announce("n1", time.Now().Add(time.Hour))
				advance(time.Second)
				h.announceOn("b", "n1", time.Now().Add(time.Hour))
				advance(time.Minute)
				for _, id := range []string{"a", "b"} {
					if blocked, message, draining := h.controller.OfInstance(id, "i-n1"); !blocked || !draining {
						t.Errorf("the drain of shard %s is blocked: %t, %q", id, blocked, message)
					}
				}
				// The Node is uncordoned if its annotation names this drain, and cordoned again
				// for the other.
				h.setInstance(withdrawn, shard.Instance{State: shard.InstanceRunning})
				h.withdrawOn(withdrawn, "n1")
				advance(time.Minute)
				h.expectCordonedBy("n1", "operator")
				h.allowEvictions()
				advance(30 * time.Second)
				h.expectAcknowledged("i-n1")
				if n := len(h.controller.evictions.pods) + len(h.controller.evictions.byDrain); n > 0 {
					t.Errorf("%d evictions remain", n)
				}
			})
		})
	}
}
