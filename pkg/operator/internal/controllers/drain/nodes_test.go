// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// Another client may have written the annotations too, for example when it restored a backup.
// With AnnotationCordonedFor the Node would be uncordoned at each resync.
func TestAnAnnotationWithASecondOwnerIsRemoved(t *testing.T) {
	for name, cordons := range map[string]bool{"the annotation": false, "annotation and cordon": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, newNode("n1"))
				h.setShardError(errUnreachable)
				h.announce("n1", time.Now().Add(time.Hour))
				synctest.Wait()
				h.expectCordonedBy("n1", "operator")
				copied := corev1ac.Node("n1").WithUID("node-n1").WithAnnotations(map[string]string{v1beta1.AnnotationCordonedFor: "a/i-n1", v1beta1.AnnotationDrainReason: "scale-down"})
				if cordons {
					copied.WithSpec(corev1ac.NodeSpec().WithUnschedulable(true))
				}
				_, err := h.CoreV1().Nodes().Apply(t.Context(), copied, metav1.ApplyOptions{FieldManager: "backup", Force: true})
				require.NoError(t, err)

				h.setShardError(nil)
				h.setInstance("a", shard.Instance{ID: "i-n1", State: shard.InstanceRunning})
				h.withdraw("n1")
				synctest.Wait()
				want := "none"
				if cordons {
					want = "user"
				}
				h.expectCordonedBy("n1", want)
				assert.Empty(t, h.node("n1").Annotations, "annotations")
				h.resetRequests()
				h.shards.Calls()
				for range 3 {
					h.shards.NotifyShard("a")
					advance(time.Minute)
				}
				assert.Zero(t, h.count("patch nodes"), "writes at resyncs")
				assert.Empty(t, h.shards.Calls(), "queries at resyncs")
			})
		})
	}
}

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

// The instance is to be deleted again while the shard is queried.
func TestNodeStaysCordonedIfANoticeArrivesDuringTheQuery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"))
		h.announce("n1", time.Now().Add(time.Hour))
		synctest.Wait()
		h.expectCordonedBy("n1", "operator")
		h.setInstance("a", shard.Instance{State: shard.InstanceRunning})
		h.shards.OnCall = func(call string) {
			if call == "get i-n1 on a" {
				h.announce("n1", time.Now().Add(time.Hour))
			}
		}
		h.resetRequests()
		h.withdraw("n1")
		synctest.Wait()
		assert.Contains(t, h.shards.Calls(), "get i-n1 on a")
		h.expectCordonedBy("n1", "operator")
		assert.Zero(t, h.count("patch nodes"), "the Node was never schedulable")
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
		h.updateNode(func(node *corev1.Node) { node.Spec.Unschedulable = false })
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
		h.updateNode(func(node *corev1.Node) { node.Spec.ProviderID = newNode("n1").Spec.ProviderID })
		synctest.Wait()
		h.expectCordonedBy("n1", "operator")

		// The other Node never gets a provider id.
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

// Reason and deadline of a drain are in no other object.
func TestACordonedNodeHasReasonAndTimeOfTheNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newNode("n1"), newPod("web-0", "n1"))
		h.rejectEviction = func(string) error { return errBudget }
		deleteAt := time.Now().Add(time.Hour)
		h.announce("n1", deleteAt)
		advance(time.Minute)
		want := map[string]string{
			"nstance.dev/cordoned-for": "a/i-n1", "nstance.dev/drain-reason": "scale-down", "nstance.dev/delete-at": "2000-01-01T01:00:00Z",
		}
		assert.Equal(t, want, h.node("n1").Annotations)
		assert.Equal(t, 1, h.count("patch nodes"), "writes")

		// The same notice again is no change, another time is a change.
		h.announce("n1", deleteAt)
		advance(time.Minute)
		assert.Equal(t, 1, h.count("patch nodes"), "writes after a repeated notice")
		h.announce("n1", deleteAt.Add(-10*time.Minute))
		advance(time.Minute)
		want["nstance.dev/delete-at"] = "2000-01-01T00:50:00Z"
		assert.Equal(t, want, h.node("n1").Annotations)
		h.announce("n1", time.Time{})
		advance(time.Minute)
		delete(want, "nstance.dev/delete-at")
		assert.Equal(t, want, h.node("n1").Annotations, "of a drain without a limit")
		h.updateNode(func(node *corev1.Node) { delete(node.Annotations, "nstance.dev/drain-reason") })
		advance(time.Minute)
		assert.Equal(t, want, h.node("n1").Annotations, "after another client has removed the reason")
		assert.Equal(t, 4, h.count("patch nodes"), "writes")

		h.setInstance("a", shard.Instance{State: shard.InstanceRunning})
		h.withdraw("n1")
		synctest.Wait()
		assert.Empty(t, h.node("n1").Annotations, "after the withdrawal")
	})
}

// A kubelet whose Node name was used before takes over the Node of the former instance, whose
// provider id cannot be changed.
func TestInstanceWithTheNodeOfAFormerInstanceIsNotAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		former := newNode("ip-10-0-0-7")
		former.Spec.ProviderID = "kwok:///former"
		former.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.7"}}
		h := newHarness(t, former, newPod("web-0", "ip-10-0-0-7"))
		h.addresses = []string{"10.0.0.7"}
		h.announce("n1", time.Now().Add(time.Hour))
		advance(10 * time.Minute)
		h.expectAcknowledged()
		h.expectCordonedBy("ip-10-0-0-7", "none")
		const want = "instance i-n1: no Node has its provider id \"kwok:///n1\", and Node ip-10-0-0-7 has its address 10.0.0.7 and the provider id \"kwok:///former\"\n"
		blocked, messages := h.blockedDrains()
		assert.Equal(t, 1, blocked)
		assert.Equal(t, want, messages)

		// An administrator deletes the Node.
		h.deleteNode("ip-10-0-0-7")
		advance(otherNodePeriod + time.Second)
		h.expectAcknowledged("i-n1")
	})
}

func TestMismatchEndsAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		former := newNode("i-n1")
		former.Spec.ProviderID = "kwok:///former"
		h := newHarness(t, former, newPod("web-0", "i-n1"))
		h.announce("n1", time.Now().Add(10*time.Minute))
		advance(5 * time.Minute)
		blocked, _ := h.blockedDrains()
		assert.Equal(t, 1, blocked, "before the deadline")
		advance(10 * time.Minute)
		blocked, _ = h.blockedDrains()
		assert.Equal(t, 0, blocked, "after the deadline")
		h.expectAcknowledged()
	})
}

func TestMismatch(t *testing.T) {
	const instance, providerID = "knd1", "aws:///us-west-2a/i-new"
	for name, c := range map[string]struct {
		node, providerID, address string
		// want is what Node and instance have in common, "" if the Node is another Node.
		want string
	}{
		"name":                             {node: "knd1", providerID: "aws:///us-west-2a/i-old", want: "name"},
		"name, without a provider id":      {node: "knd1", want: "name"},
		"name with a domain":               {node: "knd1.example.com", providerID: "aws:///us-west-2a/i-old", want: "name"},
		"name, another provider":           {node: "knd1", providerID: "proxmox://lab/100", want: "name"},
		"address":                          {node: "ip-10-0-0-7", providerID: "aws:///us-west-2a/i-old", address: "10.0.0.7", want: "address 10.0.0.7"},
		"second address":                   {node: "ip-10-0-0-7", providerID: "aws:///us-west-2a/i-old", address: "fd00::7", want: "address fd00::7"},
		"address, without a provider id":   {node: "ip-10-0-0-7", address: "10.0.0.7", want: "address 10.0.0.7"},
		"address, the id without its zone": {node: "ip-10-0-0-7", providerID: "i-old", address: "10.0.0.7", want: "address 10.0.0.7"},
		"address in another zone":          {node: "ip-10-0-0-7", providerID: "aws:///us-west-2b/i-old", address: "10.0.0.7"},
		"address at another provider":      {node: "ip-10-0-0-7", providerID: "docker:///us-west-2a/knd0", address: "10.0.0.7"},
		"another name and address":         {node: "knd10", providerID: "aws:///us-west-2a/i-old", address: "10.0.0.70"},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.node}, Spec: corev1.NodeSpec{ProviderID: c.providerID}}
			if c.address != "" {
				node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: c.address}}
			}
			listed := &nodeList{byID: map[string][]*corev1.Node{}, byHost: map[string][]*corev1.Node{}}
			listed.add(node)
			got := listed.mismatch(instance, &shard.DeletionNotice{ProviderID: providerID, Addresses: []string{"10.0.0.7", "fd00::7"}})
			if c.want == "" {
				assert.Nil(t, got)
				return
			}
			assert.Equal(t, &mismatch{node: c.node, providerID: c.providerID, common: c.want}, got)
		})
	}
}
