// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"testing"
	"testing/synctest"
	"time"

	"nstance.dev/operator/pkg/operator/shard"
)

// The shard deletes the instance by its own clock. An acknowledgement would be about a
// Node that is not empty.
func TestDrainThatIsNotFinishedInTimeIsNotAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.rejectEviction = func(string) error { return errBudget }
		h.announce("n1", time.Now().Add(time.Minute))
		advance(time.Minute + 10*time.Millisecond)
		h.expectOutcomes("timed_out 1")
		h.resetRequests()
		advance(time.Minute)
		h.expectAcknowledged()
		h.expectCordonedBy("n1", "operator")
		if n := h.count("create pods/eviction"); n != 0 {
			t.Errorf("%d evictions after the drain", n)
		}
		if draining, blocked, _ := h.controller.Summary("a", "workers"); draining != 0 || blocked != 0 {
			t.Errorf("%d drains and %d blocked after the deadline", draining, blocked)
		}
		if n := h.openWatches.Load(); n != 0 {
			t.Errorf("%d watches of Pods after the deadline", n)
		}

		// The shard deletes the instance.
		h.startDeletion("n1")
		synctest.Wait()
		h.expectOutcomes("timed_out 1")
	})
}

// The watch of a shard that was away shows the notice of before, until it has settled. The
// shard may have withdrawn the drain meanwhile, and terminates any instance whose drain is
// acknowledged.
func TestDeadlineOfAStaleNoticeIsNotAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.rejectEviction = func(string) error { return errBudget }
		h.announce("n1", time.Now().Add(time.Minute))
		advance(20 * time.Second)
		h.shards.Update(func() { h.shards.ByID["a"].Settled = false })
		h.setShardError(errUnreachable)
		advance(2 * time.Minute)

		h.setShardError(nil)
		h.setInstance("a", shard.Instance{ID: "i-n1", State: shard.InstanceRunning})
		h.shards.NotifyShard("a")
		advance(2 * time.Second)
		h.expectAcknowledged()
		h.expectCordonedBy("n1", "operator")

		h.shards.Update(func() { h.shards.ByID["a"].Settled = true })
		h.withdraw("n1")
		synctest.Wait()
		h.expectAcknowledged()
		h.expectCordonedBy("n1", "none")
		h.expectOutcomes("timed_out 1")
	})
}

func TestDrainWithALaterDeadlineContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.rejectEviction = func(string) error { return errBudget }
		h.announce("n1", time.Now().Add(time.Minute))
		advance(2 * time.Minute)
		h.allowEvictions()
		h.announce("n1", time.Now().Add(time.Minute))
		advance(10 * time.Second)
		h.expectAcknowledged("i-n1")
		h.expectOutcomes("timed_out 1")
	})
}

func TestInstanceWithoutAProviderIDIsNotAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"))
		h.shards.Update(func() {
			h.shards.ByID["a"].Notices["i-n1"] = shard.DeletionNotice{
				InstanceID: "i-n1", State: shard.Draining, Deadline: time.Now().Add(time.Minute), Announced: 1,
			}
		})
		h.shards.NotifyInstance("a", "i-n1")
		advance(2 * time.Minute)
		h.expectAcknowledged()
	})
}
