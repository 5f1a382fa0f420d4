// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

func TestFromAMachineToAnInstanceThatRuns(t *testing.T) {
	h := newHarness(t, newShards("a"), newMachine("m"))
	h.shards.ordered = func(id, request string) {
		stored := h.machine("m")
		if !held(stored) || stored.Status.Shard != id || stored.Status.RequestID != request || request != "uid-of-m" {
			t.Errorf("asked shard %q for %q, stored is %+v", id, request, stored.Status)
		}
	}
	h.expect(applyMachineM, applyStatusM)
	h.expectReady(`False Provisioning: an instance is being ordered from shard "a"`)
	h.expect(createOnA, applyStatusM)
	h.expectReady("False Provisioning: instance i-1 is ordered")
	h.expectCondition(v1beta1.ConditionInstanceCreated, "True InstanceCreated: ")

	if requeue := h.expect(askA, applyStatusM); requeue != time.Second {
		t.Errorf("asks again in %s", requeue)
	}
	h.expectReady("False Provisioning: instance i-1 is pending")
	for _, delay := range []time.Duration{2, 4, 8, 16, 30, 30} {
		h.expect()
		h.after(30 * time.Second)
		if requeue := h.expect(askA); requeue != delay*time.Second {
			t.Errorf("asks again in %s, want %ds", requeue, delay)
		}
	}
	h.after(30 * time.Second)
	h.shards.instances["i-1"].State = shard.InstanceRunning
	h.expect(askA, applyStatusM)
	h.expectReady("False Provisioning: instance i-1 has no provider id")
	if h.machine("m").Status.Initialization.Provisioned != nil {
		t.Error("an instance without a provider id is provisioned")
	}

	h.after(30 * time.Second)
	h.shards.run()
	h.expect(askA, applyMachineM, applyStatusM)
	h.expectReady("True Ready: ")
	got := h.machine("m")
	if got.Spec.ProviderID != "provider-i-1" || got.Status.ProviderID != "provider-i-1" ||
		!ptr.Deref(got.Status.Ready, false) || !ptr.Deref(got.Status.Initialization.Provisioned, false) ||
		got.Status.ObservedGeneration != got.Generation {
		t.Errorf("the machine is %+v, %+v", got.Spec, got.Status)
	}
	for range 3 {
		h.after(time.Hour)
		if requeue := h.expect(); requeue != 0 {
			t.Errorf("one that runs is looked at after %s", requeue)
		}
	}
	if got := h.events(); got != nil {
		t.Errorf("recorded %q", got)
	}
}

func TestWhatAnOrderWaitsFor(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(*harness)
		want    string
	}{
		"nobody owns it": {func(h *harness) {
			h.change(func(m *v1beta1.NstanceMachine) { m.OwnerReferences = nil })
		}, "False WaitingForMachine: no Machine owns it"},
		"something else owns it": {func(h *harness) {
			h.change(func(m *v1beta1.NstanceMachine) { m.OwnerReferences[0].APIVersion = "example.com/v1" })
		}, "False WaitingForMachine: no Machine owns it"},
		"the Machine is being deleted": {func(h *harness) {
			owner := newOwner("m")
			owner.DeletionTimestamp = ptr.To(metav1.NewTime(h.clock.Now()))
			h.put(h.owners, owner)
		}, `False WaitingForMachine: Machine "m" is being deleted`},
		"the bootstrap data": {func(h *harness) {
			owner := newOwner("m")
			owner.Spec.Bootstrap.DataSecretName = nil
			h.put(h.owners, owner)
		}, `False WaitingForMachine: Machine "m" has no bootstrap data`},
		"the Cluster": {func(h *harness) {
			h.put(h.clusters, &clusterv1.Cluster{ObjectMeta: newCluster().ObjectMeta})
		}, "False WaitingForMachine: the infrastructure of the Cluster is not provisioned"},
		"no Cluster": {func(h *harness) {
			if err := h.clusters.GetIndexer().Delete(newCluster()); err != nil {
				h.t.Fatal(err)
			}
		}, "False WaitingForMachine: the infrastructure of the Cluster is not provisioned"},
		"a shard that has the group": {func(h *harness) { h.shards.byID["a"].hasGroup = false }, "False NoShard: no shard has the group"},
		"a shard that was read": {func(h *harness) { h.shards.byID["a"].synced = false },
			"False NotSynced: no shard that was read so far can be used; not read yet: a"},
		"a shard that is configured": {func(h *harness) {
			h.change(func(m *v1beta1.NstanceMachine) { m.Spec.Shard = "z" })
		}, `False UnknownShard: shard "z" is not configured`},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newShards("a"), newMachine("m"))
			test.prepare(h)
			if requeue := h.expect(applyStatusM); requeue != 0 {
				t.Errorf("looks again in %s, want to be woken", requeue)
			}
			h.expectReady(test.want)
			h.expectCondition(v1beta1.ConditionInstanceCreated, test.want)
			h.expect()
		})
	}
}

func TestTheShardThatIsNamed(t *testing.T) {
	for name, test := range map[string]struct {
		spec    v1beta1.Identifier
		failure string
		want    string
	}{
		"by the machine":                        {"b", "", "b"},
		"by the Machine":                        {"", "b", "b"},
		"by both: the machine's word counts":    {"b", "a", "b"},
		"by nobody: the first of those at rest": {"", "", "a"},
	} {
		t.Run(name, func(t *testing.T) {
			machine := newMachine("m")
			machine.Spec.Shard = test.spec
			h := newHarness(t, newShards("a", "b"), machine)
			owner := newOwner("m")
			owner.Spec.FailureDomain = test.failure
			h.put(h.owners, owner)
			h.expect(applyMachineM, applyStatusM)
			if got := h.machine("m").Status.Shard; got != test.want {
				t.Errorf("chose %q, want %q", got, test.want)
			}
		})
	}
}

func TestARefusedOrderIsTriedAgainLaterOrWhenTheGroupChanges(t *testing.T) {
	h := newHarness(t, newShards("a"), claiming(newMachine("m")))
	h.shards.fail["create"] = refusing
	if requeue := h.expect(createOnA, applyStatusM); requeue != 5*time.Minute {
		t.Errorf("tries again in %s", requeue)
	}
	h.expectCondition(v1beta1.ConditionInstanceCreated, "False InstanceRefused: group does not exist")
	h.expectReady("False InstanceRefused: group does not exist")
	h.after(time.Minute)
	if requeue := h.expect(); requeue != 4*time.Minute {
		t.Errorf("tries again in %s", requeue)
	}
	h.after(4 * time.Minute)
	h.expect(createOnA)
	h.shards.byID["a"].etag = "2"
	h.expect(createOnA)
	if got := h.events(); len(got) != 1 || got[0] != "Warning InstanceRefused group does not exist" {
		t.Errorf("recorded %q", got)
	}
	h.shards.fail["create"] = nil
	h.shards.byID["a"].etag = "3"
	h.expect(createOnA, applyStatusM)
	if len(h.shards.instances) != 1 {
		t.Errorf("there are %d instances", len(h.shards.instances))
	}
}

func TestAnOrderToAShardThatIsAway(t *testing.T) {
	h := newHarness(t, newShards("a"), claiming(newMachine("m")))
	// Not known yet, then known to be away, then away in the middle of the call.
	h.shards.byID["a"].reachable = false
	h.expect(applyStatusM)
	h.expectReady("False NotSynced: the shard is being connected")
	h.shards.byID["a"].lost = unreachable
	h.expect(applyStatusM)
	h.expectReady("False ShardUnreachable: connection refused")
	h.shards.byID["a"].reachable = true
	h.shards.fail["create"] = status.Error(codes.DeadlineExceeded, "no answer")
	if _, _, err := h.sync(); !shard.IsUnreachable(err) {
		t.Errorf("got error %v, want backoff", err)
	}
	h.expectReady("False ShardUnreachable: no answer")
	h.shards.fail["create"] = status.Error(codes.PermissionDenied, "not yours")
	if _, _, err := h.sync(); err == nil {
		t.Error("got no error, want backoff")
	}
	h.expectReady("False InstanceRefused: not yours")
	delete(h.shards.byID, "a")
	h.expect(applyStatusM)
	h.expectReady(`False UnknownShard: shard "a" is not configured`)
}

// A client that replaces the whole object drops what it does not know of.
func TestTheFinalizerThatSomebodyDroppedComesBack(t *testing.T) {
	for stage, machine := range map[string]*v1beta1.NstanceMachine{
		"ordered": having(newMachine("m"), "i-1"),
		"running": running(newMachine("m"), "i-1"),
	} {
		t.Run(stage, func(t *testing.T) {
			h := newHarness(t, newShards("a"), machine)
			h.shards.run()
			h.change(func(m *v1beta1.NstanceMachine) { m.Finalizers = nil })
			for range 3 {
				if _, _, err := h.sync(); err != nil {
					t.Fatal(err)
				}
			}
			if !held(h.machine("m")) {
				t.Error("nothing holds it, so its instance would outlive it")
			}
		})
	}
}

// The cache of a new leader may be from before the order of the former one.
func TestAStaleCacheErasesNothing(t *testing.T) {
	for name, change := range map[string]func(*harness){
		"it would choose again": func(h *harness) { h.shards.byID["a"].hasGroup = false },
		"it would only report":  func(h *harness) { h.put(h.clusters, &clusterv1.Cluster{ObjectMeta: newCluster().ObjectMeta}) },
	} {
		for stage, cached := range map[string]*v1beta1.NstanceMachine{
			"nothing": newMachine("m"), "the finalizer": holding(newMachine("m")),
		} {
			t.Run(name+", and sees "+stage, func(t *testing.T) {
				h := newHarness(t, newShards("a", "b"), cached.DeepCopy())
				change(h)
				h.change(func(m *v1beta1.NstanceMachine) {
					having(m, "i-1")
					m.ResourceVersion = "99"
				})
				if _, _, err := h.syncStale(); !apierrors.IsConflict(err) {
					t.Errorf("got error %v, want a conflict", err)
				}
				if got := h.machine("m").Status; got.Shard != "a" || got.RequestID == "" || got.InstanceID != "i-1" || len(h.shards.requested) != 0 {
					t.Errorf("the status is %+v, asked for are %v", got, h.shards.requested)
				}
			})
		}
	}
}
