// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/operator/shard"
)

var (
	errUnreachable = status.Error(codes.Unavailable, "connection refused")
)

func TestDrainEvictsWaitsAndAcknowledges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newDaemonSet(), newPod("web-0", "n1"), newPod("web-1", "n1"), newDaemonSetPod("agent-0", "n1"), newPod("other", "n2"))
		h.announce("n1", time.Now().Add(time.Minute))
		synctest.Wait()
		h.expectCordonedBy("n1", "operator")
		if draining, blocked, list := h.controller.Summary("a", "workers"); draining != 1 || blocked != 0 || list != nil {
			t.Errorf("summary is %d, %d, %+v", draining, blocked, list)
		}
		advance(4 * time.Second)
		h.expectAcknowledged()
		advance(2 * time.Second)
		h.expectAcknowledged("i-n1")
		if n := h.count("create pods/eviction"); n != 2 {
			t.Errorf("%d evictions, want 2", n)
		}
		if draining, _, _ := h.controller.Summary("a", "workers"); draining != 0 {
			t.Errorf("%d drains after the acknowledgement", draining)
		}
		if n := h.openWatches.Load(); n != 0 {
			t.Errorf("%d watches of Pods after the acknowledgement", n)
		}
	})
}

func TestRepeatedNoticeIsAcknowledgedAgainAndNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		deleteAt := time.Now().Add(time.Minute)
		h.announce("n1", deleteAt)
		advance(2 * time.Second)
		h.announce("n1", deleteAt)
		advance(8 * time.Second)
		h.expectAcknowledged("i-n1")
		h.resetRequests()
		h.announce("n1", deleteAt)
		advance(2 * time.Second)
		h.expectAcknowledged("i-n1", "i-n1")
		if n := h.count("patch nodes", "create pods/eviction"); n != 0 {
			t.Errorf("%d cordons and evictions for a repeated notice", n)
		}
		advance(time.Minute)
		h.expectAcknowledged("i-n1", "i-n1")
	})
}

func TestWithdrawnDrainStopsAndUncordons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.rejectEviction = func(string) error { return errBudget }
		h.announce("n1", time.Now().Add(time.Hour))
		advance(20 * time.Second)
		h.expectCordonedBy("n1", "operator")
		h.setInstance("a", shard.Instance{ID: "i-n1", State: shard.InstanceRunning})
		h.withdraw("n1")
		synctest.Wait()
		h.expectCordonedBy("n1", "none")
		h.resetRequests()
		advance(time.Minute)
		if n := h.count("create pods/eviction"); n != 0 {
			t.Errorf("%d evictions after the drain", n)
		}
		if draining, blocked, _ := h.controller.Summary("a", "workers"); draining != 0 || blocked != 0 {
			t.Errorf("%d drains and %d blocked after the withdrawal", draining, blocked)
		}
		h.expectAcknowledged()
	})
}

func TestDrainStopsWhenTheInstanceIsBeingDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.rejectEviction = func(string) error { return errBudget }
		h.announce("n1", time.Now().Add(time.Hour))
		advance(20 * time.Second)
		h.startDeletion("n1")
		synctest.Wait()
		h.resetRequests()
		advance(time.Minute)
		if n := h.count("create pods/eviction", "list pods"); n != 0 {
			t.Errorf("%d requests for an instance that is being deleted", n)
		}
		h.expectAcknowledged()
		h.expectCordonedBy("n1", "operator")
		if len(h.controller.states) != 0 || len(h.controller.byProviderID) != 0 {
			t.Errorf("state remains: %v, %v", h.controller.states, h.controller.byProviderID)
		}
	})
}

func TestAcknowledgementIsRepeatedUntilItSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"))
		h.setShardError(errUnreachable)
		h.announce("n1", time.Now().Add(time.Hour))
		advance(5 * time.Minute)
		h.expectAcknowledged()
		h.setShardError(nil)
		advance(25 * time.Second)
		h.expectAcknowledged("i-n1")
	})
}

func TestPodThatIsCreatedAfterTheFirstListIsEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.announce("n1", time.Now().Add(time.Minute))
		advance(2 * time.Second)
		h.addPod(newPod("late", "n1"))
		advance(4 * time.Second)
		h.expectAcknowledged()
		advance(4 * time.Second)
		h.expectAcknowledged("i-n1")
	})
}

// The watch may be delayed, so the acknowledgement depends on a live list.
func TestPodThatTheWatchDoesNotShowBlocksTheAcknowledgement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"))
		var lists atomic.Int32
		h.failRequest = func(request string) error {
			if request == "list pods" && lists.Add(1) == 2 {
				// The watch started when the Node had no Pods.
				pod := newPod("web-0", "n1")
				pod.Annotations = map[string]string{unwatched: "yes"}
				return h.Tracker().Add(pod)
			}
			return nil
		}
		h.announce("n1", time.Now().Add(time.Hour))
		advance(30 * time.Second)
		h.expectAcknowledged()
		if n := h.count("list pods"); n < 10 || n > 33 {
			t.Errorf("%d lists of Pods in 30 s", n)
		}
		h.deletePod()
		advance(2 * time.Second)
		h.expectAcknowledged("i-n1")
	})
}

func TestPodsOfAnUnreachableNodeBlockItUntilTheirGracePeriodIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newNode("n1")
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		pod := newPod("web-0", "n1")
		pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
		// The API server still has the Pod at the acknowledgement.
		pod.Labels = nil
		h := newHarness(t, node, pod)
		h.announce("n1", time.Now().Add(time.Hour))
		advance(29 * time.Second)
		h.expectAcknowledged()
		advance(2 * time.Second)
		h.expectAcknowledged("i-n1")
	})
}

func TestHandlersAreCalledOnEachChangeOfTheSummary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		var calls []string
		h.controller.AddHandler(func(id, group, instance string) {
			_, blocked, _ := h.controller.Summary(id, group)
			calls = append(calls, map[bool]string{true: "blocked ", false: ""}[blocked > 0]+id+"/"+group+"/"+instance)
		})
		allowed := time.Now().Add(time.Minute)
		h.rejectEviction = func(string) error {
			if time.Now().Before(allowed) {
				return errBudget
			}
			return nil
		}
		h.announce("n1", time.Now().Add(time.Hour))
		advance(2 * time.Minute)
		want := []string{"a/workers/i-n1", "blocked a/workers/i-n1", "a/workers/i-n1", "a/workers/i-n1"}
		if !slices.Equal(calls, want) {
			t.Errorf("handler calls are %q, want %q", calls, want)
		}
	})
}

func TestInstanceWithAnIncompleteProviderIDIsNotAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"))
		h.announce("", time.Now().Add(time.Hour))
		advance(time.Minute)
		h.expectAcknowledged()
	})
}

func TestPodsOfANodeThatReportsAgainBlockIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newNode("n1")
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		h := newHarness(t, node, newPod("web-0", "n1"), newPod("web-1", "n1"))
		h.rejectEviction = func(pod string) error {
			if pod == "web-1" {
				return errBudget
			}
			return nil
		}
		h.announce("n1", time.Now().Add(time.Hour))
		advance(30 * time.Second)
		h.updateNode(func(node *corev1.Node) { node.Status.Conditions[0].Status = corev1.ConditionTrue })
		h.allowEvictions()
		advance(30 * time.Second)
		h.expectAcknowledged()
		h.deletePod()
		advance(5 * time.Second)
		h.expectAcknowledged("i-n1")
	})
}

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
