// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/shard"
)

var (
	errNotFound    = status.Error(codes.NotFound, "no such instance")
	errUnreachable = status.Error(codes.Unavailable, "connection refused")
)

// bubble runs a test in virtual time.
func bubble(t *testing.T, test func(*testing.T)) {
	t.Helper()
	synctest.Test(t, test)
}

// want fails the test unless these instances were acknowledged, in order.
func (w *world) want(acknowledged ...string) {
	w.t.Helper()
	if got := w.acknowledged(); !slices.Equal(got, acknowledged) {
		w.t.Errorf("acknowledged %q, want %q", got, acknowledged)
	}
}

// wantCordoned fails the test unless the Node is cordoned that way.
func (w *world) wantCordoned(node, how string) {
	w.t.Helper()
	if got := w.cordoned(node); got != how {
		w.t.Errorf("Node %s is cordoned: %s, want %s", node, got, how)
	}
}

// add makes an object as somebody else does.
func (w *world) add(node *corev1.Node) {
	w.t.Helper()
	if _, err := w.CoreV1().Nodes().Create(context.Background(), node, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func TestDrainEvictsWaitsAndAcknowledges(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"), newDaemonSet(), newPod("web-0", "n1"), newPod("web-1", "n1"), newAgent("agent-0", "n1"), newPod("other", "n2"))
		w.tell("n1", time.Now().Add(time.Minute))
		synctest.Wait()
		w.wantCordoned("n1", "ours")
		if draining, blocked, message := w.controller.Summary("a", "workers"); draining != 1 || blocked != 0 || message != "" {
			t.Errorf("summary is %d, %d, %q", draining, blocked, message)
		}
		after(4 * time.Second)
		w.want()
		after(2 * time.Second)
		w.want("i-n1")
		if n := w.count("create pods/eviction"); n != 2 {
			t.Errorf("%d evictions, want 2", n)
		}
		if draining, _, _ := w.controller.Summary("a", "workers"); draining != 0 {
			t.Errorf("%d drains after the acknowledgement", draining)
		}
		if n := w.watching.Load(); n != 0 {
			t.Errorf("%d watches of Pods after the acknowledgement", n)
		}
	})
}

func TestDuplicateNoticeIsAcknowledgedAgainAndNothingElse(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"), newPod("web-0", "n1"))
		w.tell("n1", time.Now().Add(time.Minute))
		after(2 * time.Second)
		w.tell("n1", time.Now().Add(time.Minute))
		after(8 * time.Second)
		w.want("i-n1")
		w.reset()
		w.tell("n1", time.Now().Add(time.Minute))
		after(2 * time.Second)
		w.want("i-n1", "i-n1")
		if n := w.count("patch nodes", "create pods/eviction"); n != 0 {
			t.Errorf("%d cordons and evictions for a repeated notice", n)
		}
		after(time.Minute)
		w.want("i-n1", "i-n1")
	})
}

func TestForeignCordonStaysForeign(t *testing.T) {
	bubble(t, func(t *testing.T) {
		node := newNode("n1")
		node.Spec.Unschedulable = true
		w := newWorld(t, node, newPod("web-0", "n1"))
		w.instances[cache.NewObjectName("a", "i-n1")] = shard.Instance{ID: "i-n1", State: shard.InstanceRunning}
		w.tell("n1", time.Now().Add(time.Minute))
		after(time.Second)
		w.wantCordoned("n1", "foreign")
		w.drop("n1")
		after(time.Minute)
		w.wantCordoned("n1", "foreign")
		if n := w.count("patch nodes"); n != 0 {
			t.Errorf("%d changes of the Node", n)
		}
	})
}

func TestCordonThatTheCacheDoesNotShowYetIsNotMarked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		node := newNode("n1")
		node.ResourceVersion = "1"
		w := newWorld(t, node, newPod("web-0", "n1"))
		w.beforePatch = func() {
			cordoned := w.node("n1").DeepCopy()
			cordoned.ResourceVersion, cordoned.Spec.Unschedulable = "2", true
			if err := w.Tracker().Update(nodes, cordoned, ""); err != nil {
				t.Error(err)
			}
		}
		w.tell("n1", time.Now().Add(time.Minute))
		after(5 * time.Second)
		w.wantCordoned("n1", "foreign")
		w.want("i-n1")
	})
}

func TestWithdrawnDrainEndsAndUncordons(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"), newPod("web-0", "n1"))
		w.refuse = func(string) error { return errBudget }
		w.tell("n1", time.Now().Add(time.Hour))
		after(20 * time.Second)
		w.wantCordoned("n1", "ours")
		w.instances[cache.NewObjectName("a", "i-n1")] = shard.Instance{ID: "i-n1", State: shard.InstanceRunning}
		w.drop("n1")
		synctest.Wait()
		w.wantCordoned("n1", "no")
		w.reset()
		after(time.Minute)
		if n := w.count("create pods/eviction"); n != 0 {
			t.Errorf("%d evictions after the end", n)
		}
		if draining, blocked, _ := w.controller.Summary("a", "workers"); draining != 0 || blocked != 0 {
			t.Errorf("%d drains and %d blocked after the end", draining, blocked)
		}
		w.want()
	})
}

func TestWithdrawalIsBelievedOnlyWhenTheShardConfirmsIt(t *testing.T) {
	for name, c := range map[string]struct {
		unsettled bool
		down      error
		instance  *shard.Instance
		asked     int
		cordoned  string
	}{
		"runs and is to stay":         {instance: &shard.Instance{State: shard.InstanceRunning}, asked: 1, cordoned: "no"},
		"the watch is not open":       {unsettled: true, instance: &shard.Instance{State: shard.InstanceRunning}, cordoned: "ours"},
		"unknown to the shard":        {asked: 1, cordoned: "ours"},
		"being terminated":            {instance: &shard.Instance{State: shard.InstanceTerminating}, asked: 1, cordoned: "ours"},
		"gone":                        {instance: &shard.Instance{State: shard.InstanceTerminated}, asked: 1, cordoned: "ours"},
		"drains all the same":         {instance: &shard.Instance{State: shard.InstanceRunning, DeleteAt: time.Now().Add(time.Hour)}, asked: 3, cordoned: "ours"},
		"stopped":                     {instance: &shard.Instance{State: shard.InstanceStopped}, asked: 3, cordoned: "ours"},
		"the shard is not reachable":  {down: errUnreachable, asked: 9, cordoned: "ours"},
		"the shard is not configured": {down: shard.ErrUnknownShard, asked: 1, cordoned: "ours"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, newNode("n1"))
				w.tell("n1", time.Now().Add(time.Hour))
				synctest.Wait()
				w.wantCordoned("n1", "ours")
				w.stop()

				// Another process finds the mark and no notice.
				w.servers.mu.Lock()
				clear(w.notices)
				w.settled["a"] = !c.unsettled
				w.down = c.down
				if c.instance != nil {
					w.instances[cache.NewObjectName("a", "i-n1")] = *c.instance
				}
				w.servers.mu.Unlock()
				w.start()
				after(25 * time.Second)
				w.wantCordoned("n1", c.cordoned)
				if w.asked != c.asked {
					t.Errorf("the shard was asked %d times, want %d", w.asked, c.asked)
				}

				// In the end, it is there to stay.
				w.servers.mu.Lock()
				w.settled["a"] = true
				w.down = nil
				w.instances[cache.NewObjectName("a", "i-n1")] = shard.Instance{State: shard.InstanceRunning}
				w.servers.mu.Unlock()
				w.controller.ShardChanged("a")
				synctest.Wait()
				w.wantCordoned("n1", "no")
			})
		})
	}
}

func TestUncordonedNodeIsCordonedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"), newPod("web-0", "n1"))
		w.refuse = func(string) error { return errBudget }
		w.tell("n1", time.Now().Add(time.Hour))
		after(2 * time.Second)
		w.change("n1", func(node *corev1.Node) { node.Spec.Unschedulable = false })
		synctest.Wait()
		w.wantCordoned("n1", "ours")
	})
}

func TestTwoNodesOfOneProviderIDAreLeftAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		twin := newNode("twin")
		twin.Spec.ProviderID = "n1"
		w := newWorld(t, newNode("n1"), twin, newPod("web-0", "n1"))
		w.tell("n1", time.Now().Add(time.Hour))
		after(time.Minute)
		w.wantCordoned("n1", "no")
		w.wantCordoned("twin", "no")
		w.want()
		if got := w.recorded(); len(got) != 2 {
			t.Errorf("events %q, want one for each Node", got)
		}
		if blocked, message, draining := w.controller.OfInstance("a", "i-n1"); !blocked || !draining || message != `provider id "kwok:///n1" matches Nodes n1, twin` {
			t.Errorf("instance is draining %t, blocked %t: %q", draining, blocked, message)
		}
		if err := w.CoreV1().Nodes().Delete(t.Context(), "twin", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		after(8 * time.Second)
		w.want("i-n1")
	})
}

func TestNodeThatIsMissingFromALiveListIsAcknowledged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.reset()
		w.tell("n1", time.Now().Add(time.Hour))
		after(time.Second)
		w.want("i-n1")
		if n := w.count("list nodes"); n != 1 {
			t.Errorf("%d lists of Nodes, want 1", n)
		}

		// It registers late: no Pod is to start there.
		w.add(newNode("n1"))
		synctest.Wait()
		w.wantCordoned("n1", "ours")
		w.want("i-n1")
	})
}

func TestNodeIsNotMissingWhileTheListFails(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		recovers := time.Now().Add(10 * time.Second)
		w.fail = func(call string) error {
			if call == "list nodes" && time.Now().Before(recovers) {
				return errUnreachable
			}
			return nil
		}
		w.tell("n1", time.Now().Add(time.Hour))
		after(9 * time.Second)
		w.want()
		after(10 * time.Second)
		w.want("i-n1")
	})
}

func TestInstanceWithoutProviderIDIsNotWithoutANode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"))
		w.notices[cache.NewObjectName("a", "i-n1")] = shard.Notice{InstanceID: "i-n1", State: shard.Draining, DeleteAt: time.Now().Add(time.Minute), Announced: 1}
		w.controller.InstanceChanged("a", "i-n1")
		after(59 * time.Second)
		w.want()
		after(2 * time.Second)
		w.want("i-n1")
	})
}

func TestNodeThatIsDeletedInTheMiddleIsAcknowledged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"), newPod("web-0", "n1"))
		w.refuse = func(string) error { return errBudget }
		w.tell("n1", time.Now().Add(time.Hour))
		after(20 * time.Second)
		w.want()
		// The Pod goes with its Node.
		if err := w.Tracker().Delete(pods, "default", "web-0"); err != nil {
			t.Fatal(err)
		}
		if err := w.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		after(time.Second)
		w.want("i-n1")
	})
}

// What a list said before there was a Node is not the news that it is gone.
func TestNodeThatComesAndGoesIsLookedUpAnew(t *testing.T) {
	bubble(t, func(t *testing.T) {
		pod := newPod("web-0", "n1")
		// It is still there when the Node is not.
		pod.Labels = nil
		w := newWorld(t, pod)
		w.refuse = func(string) error { return errBudget }
		w.shardIs(errUnreachable)
		w.tell("n1", time.Now().Add(time.Hour))
		after(time.Second)
		w.add(newNode("n1"))
		after(5 * time.Second)
		w.wantCordoned("n1", "ours")
		w.reset()
		if err := w.CoreV1().Nodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.shardIs(nil)
		after(5 * time.Second)
		w.want("i-n1")
		if n := w.count("list nodes"); n != 1 {
			t.Errorf("%d lists of Nodes, want 1", n)
		}
	})
}

func TestDrainThatIsNotFinishedInTimeIsAcknowledged(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"), newPod("web-0", "n1"))
		w.refuse = func(string) error { return errBudget }
		w.tell("n1", time.Now().Add(time.Minute))
		after(time.Minute - time.Second)
		w.want()
		after(time.Second + 10*time.Millisecond)
		w.want("i-n1")
		w.reset()
		after(time.Minute)
		if n := w.count("create pods/eviction"); n != 0 {
			t.Errorf("%d evictions after the end", n)
		}
	})
}

func TestDrainEndsWhenTheInstanceIsBeingDeleted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"), newPod("web-0", "n1"))
		w.refuse = func(string) error { return errBudget }
		w.tell("n1", time.Now().Add(time.Hour))
		after(20 * time.Second)
		key := cache.NewObjectName("a", "i-n1")
		w.servers.mu.Lock()
		notice := w.notices[key]
		notice.State = shard.Deleting
		w.notices[key] = notice
		w.servers.mu.Unlock()
		w.controller.InstanceChanged("a", "i-n1")
		synctest.Wait()
		w.reset()
		after(time.Minute)
		if n := w.count("create pods/eviction", "list pods"); n != 0 {
			t.Errorf("%d calls for an instance that is being deleted", n)
		}
		w.want()
		w.wantCordoned("n1", "ours")
		if len(w.controller.records) != 0 || len(w.controller.byMachine) != 0 {
			t.Errorf("still remembered: %v, %v", w.controller.records, w.controller.byMachine)
		}
	})
}

func TestAcknowledgementIsRepeatedUntilTheShardHasTakenIt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"))
		w.shardIs(errUnreachable)
		w.tell("n1", time.Now().Add(time.Hour))
		after(5 * time.Minute)
		w.want()
		w.shardIs(nil)
		after(25 * time.Second)
		w.want("i-n1")
	})
}

func TestPodThatComesAfterTheFirstListIsEvictedToo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"), newPod("web-0", "n1"))
		w.tell("n1", time.Now().Add(time.Minute))
		after(2 * time.Second)
		if err := w.Tracker().Add(newPod("late", "n1")); err != nil {
			t.Fatal(err)
		}
		after(4 * time.Second)
		w.want()
		after(4 * time.Second)
		w.want("i-n1")
	})
}

// The watch may be behind. What counts is a live list.
func TestPodThatTheWatchDoesNotShowHoldsUpTheAcknowledgement(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"))
		var lists atomic.Int32
		w.fail = func(call string) error {
			if call == "list pods" && lists.Add(1) == 2 {
				// The watch has begun with a Node without Pods.
				pod := newPod("web-0", "n1")
				pod.Annotations = map[string]string{unseen: "yes"}
				return w.Tracker().Add(pod)
			}
			return nil
		}
		w.tell("n1", time.Now().Add(time.Hour))
		after(30 * time.Second)
		w.want()
		if n := w.count("list pods"); n < 10 || n > 33 {
			t.Errorf("%d lists of Pods in 30 s", n)
		}
		if err := w.Tracker().Delete(pods, "default", "web-0"); err != nil {
			t.Fatal(err)
		}
		after(2 * time.Second)
		w.want("i-n1")
	})
}

func TestNodeIsLookedUpAgainWhileTheShardIsUnreachable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t)
		w.shardIs(errUnreachable)
		w.reset()
		w.tell("n1", time.Now().Add(time.Hour))
		after(10 * time.Minute)
		if n := w.count("list nodes"); n < 5 || n > 11 {
			t.Errorf("%d lists of Nodes in 10 min", n)
		}
		w.shardIs(nil)
		after(20 * time.Second)
		w.want("i-n1")
	})
}

func TestPodsOfAnUnreachableNodeHoldItUpUntilTheirGraceIsOver(t *testing.T) {
	bubble(t, func(t *testing.T) {
		node := newNode("n1")
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		pod := newPod("web-0", "n1")
		pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
		// The API server still has it when the drain is over.
		pod.Labels = nil
		w := newWorld(t, node, pod)
		w.tell("n1", time.Now().Add(time.Hour))
		after(29 * time.Second)
		w.want()
		after(2 * time.Second)
		w.want("i-n1")
	})
}

func TestHandlersHearOfEveryChangeOfTheSummary(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"), newPod("web-0", "n1"))
		var heard []string
		w.controller.AddHandler(func(id, group, instance string) {
			_, blocked, _ := w.controller.Summary(id, group)
			heard = append(heard, map[bool]string{true: "blocked ", false: ""}[blocked > 0]+id+"/"+group+"/"+instance)
		})
		allowed := time.Now().Add(time.Minute)
		w.refuse = func(string) error {
			if time.Now().Before(allowed) {
				return errBudget
			}
			return nil
		}
		w.tell("n1", time.Now().Add(time.Hour))
		after(2 * time.Minute)
		want := []string{"a/workers/i-n1", "blocked a/workers/i-n1", "a/workers/i-n1", "a/workers/i-n1"}
		if !slices.Equal(heard, want) {
			t.Errorf("heard %q, want %q", heard, want)
		}
	})
}

func TestIdOfNoMachineIsNotWithoutANode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, newNode("n1"))
		w.tell("", time.Now().Add(time.Hour))
		after(time.Minute)
		w.want()
	})
}

func TestNodeThatIsHeardOfAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		node := newNode("n1")
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		w := newWorld(t, node, newPod("web-0", "n1"), newPod("web-1", "n1"))
		w.refuse = func(pod string) error {
			if pod == "web-1" {
				return errBudget
			}
			return nil
		}
		w.tell("n1", time.Now().Add(time.Hour))
		after(30 * time.Second)
		w.change("n1", func(node *corev1.Node) { node.Status.Conditions[0].Status = corev1.ConditionTrue })
		w.mu.Lock()
		w.refuse = func(string) error { return nil }
		w.mu.Unlock()
		after(30 * time.Second)
		w.want()
		if err := w.Tracker().Delete(pods, "default", "web-0"); err != nil {
			t.Fatal(err)
		}
		after(5 * time.Second)
		w.want("i-n1")
	})
}
