// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
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
		if draining, blocked, message := h.controller.Summary("a", "workers"); draining != 1 || blocked != 0 || message != "" {
			t.Errorf("summary is %d, %d, %q", draining, blocked, message)
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
		h.announce("n1", time.Now().Add(time.Minute))
		advance(2 * time.Second)
		h.announce("n1", time.Now().Add(time.Minute))
		advance(8 * time.Second)
		h.expectAcknowledged("i-n1")
		h.resetRequests()
		h.announce("n1", time.Now().Add(time.Minute))
		advance(2 * time.Second)
		h.expectAcknowledged("i-n1", "i-n1")
		if n := h.count("patch nodes", "create pods/eviction"); n != 0 {
			t.Errorf("%d cordons and evictions for a repeated notice", n)
		}
		advance(time.Minute)
		h.expectAcknowledged("i-n1", "i-n1")
	})
}

func TestCordonOfAnotherClientStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newNode("n1")
		node.Spec.Unschedulable = true
		h := newHarness(t, node, newPod("web-0", "n1"))
		h.setInstance("a", shard.Instance{ID: "i-n1", State: shard.InstanceRunning})
		h.announce("n1", time.Now().Add(time.Minute))
		advance(time.Second)
		h.expectCordonedBy("n1", "user")
		h.withdraw("n1")
		advance(time.Minute)
		h.expectCordonedBy("n1", "user")
		if n := h.count("patch nodes"); n != 0 {
			t.Errorf("%d changes of the Node", n)
		}
	})
}

func TestCordonOfAnotherClientIsNotAnnotatedWithAStaleCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newNode("n1")
		node.ResourceVersion = "1"
		h := newHarness(t, node, newPod("web-0", "n1"))
		h.beforePatch = func() {
			cordoned := h.node("n1").DeepCopy()
			cordoned.ResourceVersion, cordoned.Spec.Unschedulable = "2", true
			if err := h.Tracker().Update(nodes, cordoned, ""); err != nil {
				t.Error(err)
			}
		}
		h.announce("n1", time.Now().Add(time.Minute))
		advance(5 * time.Second)
		h.expectCordonedBy("n1", "user")
		h.expectAcknowledged("i-n1")
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

func TestNodeIsUncordonedOnlyIfTheShardConfirmsTheWithdrawal(t *testing.T) {
	for name, c := range map[string]struct {
		unsettled bool
		down      error
		instance  *shard.Instance
		queries   int
		cordoned  string
	}{
		"running":                     {instance: &shard.Instance{State: shard.InstanceRunning}, queries: 1, cordoned: "none"},
		"the cache is not settled":    {unsettled: true, instance: &shard.Instance{State: shard.InstanceRunning}, cordoned: "operator"},
		"not found":                   {queries: 1, cordoned: "operator"},
		"being terminated":            {instance: &shard.Instance{State: shard.InstanceTerminating}, queries: 1, cordoned: "operator"},
		"terminated":                  {instance: &shard.Instance{State: shard.InstanceTerminated}, queries: 1, cordoned: "operator"},
		"will be deleted":             {instance: &shard.Instance{State: shard.InstanceRunning, DeleteAt: time.Now().Add(time.Hour)}, queries: 3, cordoned: "operator"},
		"stopped":                     {instance: &shard.Instance{State: shard.InstanceStopped}, queries: 3, cordoned: "operator"},
		"the shard is not reachable":  {down: errUnreachable, queries: 9, cordoned: "operator"},
		"the shard is not configured": {down: shard.ErrUnknownShard, queries: 1, cordoned: "operator"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, newNode("n1"))
				h.announce("n1", time.Now().Add(time.Hour))
				synctest.Wait()
				h.expectCordonedBy("n1", "operator")
				h.stop()

				// A new process finds the annotation and no notice.
				h.shards.Update(func() {
					a := h.shards.ByID["a"]
					clear(a.Notices)
					a.Settled = !c.unsettled
					if c.instance != nil {
						a.Instances["i-n1"] = *c.instance
					}
				})
				h.setShardError(c.down)
				h.shards.Calls()
				h.start()
				advance(25 * time.Second)
				h.expectCordonedBy("n1", c.cordoned)
				if queries := len(h.shards.Calls()); queries != c.queries {
					t.Errorf("the shard was queried %d times, want %d", queries, c.queries)
				}

				// Finally the shard confirms that the instance stays.
				h.shards.Update(func() { h.shards.ByID["a"].Settled = true })
				h.setShardError(nil)
				h.setInstance("a", shard.Instance{State: shard.InstanceRunning})
				h.shards.NotifyShard("a")
				synctest.Wait()
				h.expectCordonedBy("n1", "none")
			})
		})
	}
}

func TestUncordonedNodeIsCordonedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.rejectEviction = func(string) error { return errBudget }
		h.announce("n1", time.Now().Add(time.Hour))
		advance(2 * time.Second)
		h.updateNode("n1", func(node *corev1.Node) { node.Spec.Unschedulable = false })
		synctest.Wait()
		h.expectCordonedBy("n1", "operator")
	})
}

func TestTwoNodesWithOneProviderIDAreNotChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		twin := newNode("twin")
		twin.Spec.ProviderID = "n1"
		h := newHarness(t, newNode("n1"), twin, newPod("web-0", "n1"))
		h.announce("n1", time.Now().Add(time.Hour))
		advance(time.Minute)
		h.expectCordonedBy("n1", "none")
		h.expectCordonedBy("twin", "none")
		h.expectAcknowledged()
		if got := h.fakes.Events(); len(got) != 2 {
			t.Errorf("events %q, want one for each Node", got)
		}
		if blocked, message, draining := h.controller.OfInstance("a", "i-n1"); !blocked || !draining || message != `provider id "kwok:///n1" matches Nodes n1, twin` {
			t.Errorf("instance is draining %t, blocked %t: %q", draining, blocked, message)
		}
		h.deleteNode("twin")
		advance(8 * time.Second)
		h.expectAcknowledged("i-n1")
	})
}

func TestInstanceWithoutANodeInALiveListIsAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.resetRequests()
		h.announce("n1", time.Now().Add(time.Hour))
		advance(time.Second)
		h.expectAcknowledged("i-n1")
		if n := h.count("list nodes"); n != 1 {
			t.Errorf("%d lists of Nodes, want 1", n)
		}

		// The Node registers late: no Pod may start there.
		h.addNode(newNode("n1"))
		synctest.Wait()
		h.expectCordonedBy("n1", "operator")
		h.expectAcknowledged("i-n1")
	})
}

func TestNodeWithoutAProviderIDMayBeThatOfTheInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late, other := newNode("n1"), newNode("other")
		late.Spec.ProviderID, other.Spec.ProviderID = "", ""
		h := newHarness(t, late, other)
		h.announce("n1", time.Now().Add(time.Hour))
		h.announce("n2", time.Now().Add(time.Hour))
		advance(unidentifiedNodeTimeout / 2)
		h.expectAcknowledged()
		h.updateNode("n1", func(node *corev1.Node) { node.Spec.ProviderID = newNode("n1").Spec.ProviderID })
		synctest.Wait()
		h.expectCordonedBy("n1", "operator")

		// The other Node never gets one.
		advance(unidentifiedNodeTimeout/2 + unidentifiedNodePeriod + time.Second)
		h.expectAcknowledged("i-n1", "i-n2")
	})
}

func TestInstanceWithoutANodeIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		group := &v1beta1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{Namespace: h.fakes.Namespace, Name: v1beta1.ShardGroupName("workers", "a")}}
		require.NoError(t, h.fakes.Informers.Nstance.NstanceShardGroups().Informer().GetIndexer().Add(group))
		h.announce("n1", time.Now().Add(time.Hour))
		advance(time.Second)
		h.expectAcknowledged("i-n1")
		h.announce("n1", time.Now().Add(time.Hour))
		advance(time.Second)
		h.expectAcknowledged("i-n1", "i-n1")
		want := []string{"Warning NoNode instance i-n1 has no Node, so that it is deleted without a drain"}
		assert.Equal(t, want, h.fakes.Events(), "the events")
	})
}

func TestInstanceIsNotAcknowledgedWhileTheListOfNodesFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		recovers := time.Now().Add(10 * time.Second)
		h.failRequest = func(request string) error {
			if request == "list nodes" && time.Now().Before(recovers) {
				return errUnreachable
			}
			return nil
		}
		h.announce("n1", time.Now().Add(time.Hour))
		advance(9 * time.Second)
		h.expectAcknowledged()
		advance(10 * time.Second)
		h.expectAcknowledged("i-n1")
	})
}

func TestNodeThatIsDeletedDuringTheDrainIsAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.rejectEviction = func(string) error { return errBudget }
		h.announce("n1", time.Now().Add(time.Hour))
		advance(20 * time.Second)
		h.expectAcknowledged()
		// The Pod is deleted with its Node.
		h.deletePod()
		h.deleteNode("n1")
		advance(time.Second)
		h.expectAcknowledged("i-n1")
	})
}

// A list from before the Node existed does not prove that the Node was deleted.
func TestTemporaryNodeIsLookedUpAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := newPod("web-0", "n1")
		// The Pod still exists after the Node.
		pod.Labels = nil
		h := newHarness(t, pod)
		h.rejectEviction = func(string) error { return errBudget }
		h.setShardError(errUnreachable)
		h.announce("n1", time.Now().Add(time.Hour))
		advance(time.Second)
		h.addNode(newNode("n1"))
		advance(5 * time.Second)
		h.expectCordonedBy("n1", "operator")
		h.resetRequests()
		h.deleteNode("n1")
		h.setShardError(nil)
		advance(5 * time.Second)
		h.expectAcknowledged("i-n1")
		if n := h.count("list nodes"); n != 1 {
			t.Errorf("%d lists of Nodes, want 1", n)
		}
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

func TestNodeIsLookedUpAgainWhileTheShardIsUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t)
		h.setShardError(errUnreachable)
		h.resetRequests()
		h.announce("n1", time.Now().Add(time.Hour))
		advance(10 * time.Minute)
		if n := h.count("list nodes"); n < 5 || n > 11 {
			t.Errorf("%d lists of Nodes in 10 min", n)
		}
		h.setShardError(nil)
		advance(20 * time.Second)
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
		h.updateNode("n1", func(node *corev1.Node) { node.Status.Conditions[0].Status = corev1.ConditionTrue })
		h.allowEvictions()
		advance(30 * time.Second)
		h.expectAcknowledged()
		h.deletePod()
		advance(5 * time.Second)
		h.expectAcknowledged("i-n1")
	})
}
