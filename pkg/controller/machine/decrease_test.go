// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

const (
	deleteOfM = "delete m on a"
	choosing  = `MachinePool "machine-pool" is to have 4 replicas, and it is being chosen which of 5 go`
	leaving   = `pool "pool" is being deleted, and its size on shard "a" is being lowered`
	telling   = `shard "a" is being told not to replace the instance`
)

func TestWhatTheEndOfAMemberWaitsFor(t *testing.T) {
	paused := map[string]string{clusterv1.PausedAnnotation: ""}
	gone := ptr.To(metav1.Now())
	for name, test := range map[string]struct {
		change func(*poolScale)
		want   string
	}{
		"as many as there are to be":    {func(*poolScale) {}, ""},
		"more to be":                    {func(s *poolScale) { s.machinePool = newMachinePool(6) }, ""},
		"fewer to be":                   {func(s *poolScale) { s.machinePool = newMachinePool(4) }, choosing},
		"fewer, and chosen":             {func(s *poolScale) { s.machinePool = newMachinePool(4); s.groups[0] = newShardGroup("a", 3, "m") }, choosing},
		"chosen":                        {func(s *poolScale) { s.groups[0] = newShardGroup("a", 3, "other", "m") }, telling},
		"chosen, and the shard knows":   {func(s *poolScale) { s.groups[0] = newShardGroup("a", 3, "m"); s.reported.RemoveFirst = []string{"m"} }, ""},
		"chosen, and the shard cannot":  {func(s *poolScale) { s.groups[0] = newShardGroup("a", 3, "m"); s.reported = shard.Group{} }, ""},
		"others are chosen":             {func(s *poolScale) { s.groups[0] = newShardGroup("a", 3, "other") }, ""},
		"chosen on another shard":       {func(s *poolScale) { s.groups[1] = newShardGroup("b", 2, "m") }, ""},
		"fewer of a pool that is gone":  {func(s *poolScale) { s.machinePool = newMachinePool(4); s.pool = nil }, ""},
		"a pool that goes":              {func(s *poolScale) { s.pool.DeletionTimestamp = gone }, leaving},
		"also without a MachinePool":    {func(s *poolScale) { s.pool.DeletionTimestamp, s.machinePool = gone, nil }, leaving},
		"chosen by a pool that goes":    {func(s *poolScale) { s.pool.DeletionTimestamp, s.groups[0] = gone, newShardGroup("a", 2, "m") }, telling},
		"its shard has none to replace": {func(s *poolScale) { s.pool.DeletionTimestamp, s.groups[0] = gone, newShardGroup("a", 0) }, ""},
		"its shard group is gone":       {func(s *poolScale) { s.pool.DeletionTimestamp, s.groups = gone, s.groups[1:] }, ""},
		"its shard group goes": {func(s *poolScale) {
			s.pool.DeletionTimestamp, s.groups[0] = gone, newShardGroup("a", 2, "m")
			s.groups[0].DeletionTimestamp = gone
		}, ""},
		"a pool that goes and rests":    {func(s *poolScale) { s.pool.DeletionTimestamp, s.pool.Annotations = gone, paused }, ""},
		"fewer of a pool that rests":    {func(s *poolScale) { s.machinePool = newMachinePool(4); s.pool.Annotations = paused }, ""},
		"nobody says how many":          {func(s *poolScale) { s.machinePool = nil }, ""},
		"nobody says how many yet":      {func(s *poolScale) { s.machinePool.Spec.Replicas = nil }, ""},
		"fewer of a MachinePool going":  {func(s *poolScale) { s.machinePool = newMachinePool(4); s.machinePool.DeletionTimestamp = gone }, ""},
		"fewer of a MachinePool paused": {func(s *poolScale) { s.machinePool = newMachinePool(4); s.machinePool.Annotations = paused }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			scale := poolScale{
				pool: newPool(), machinePool: newMachinePool(5),
				groups:   []*v1beta1.NstanceShardGroup{newShardGroup("a", 3), newShardGroup("b", 2)},
				reported: shard.Group{ListsInstances: true},
			}
			test.change(&scale)
			if got := scale.pending("a", "m"); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

const unconfirmed = "False Deleting: the shard has not confirmed that the instance is gone: "

// decreasing is a harness with a member that is to end, of a pool of 3 and 2.
func decreasing(t *testing.T, replicas int32) *harness {
	t.Helper()
	h := newHarness(t, newShards("a", "b"), deleting(owned(runningMember("m"))))
	h.shards.list(listed(shard.InstanceRunning))
	h.addPool(replicas, 3, 2)
	return h
}

func TestAMemberEndsAtOnceWhenItIsToBeReplaced(t *testing.T) {
	h := decreasing(t, 5)
	if requeue := h.expect(deleteOfM, applyStatusM); requeue != firstAsk {
		t.Errorf("asks again in %s", requeue)
	}
	h.expectReady("False Deleting: the shard is ending the instance")
	h.shards.deleted = true
	h.after(time.Minute)
	h.expect(deleteOfM, patchM)
	if h.machine("m") != nil {
		t.Error("it is still there")
	}
}

func TestAMemberEndsWhenItsShardKnowsThatThereAreToBeFewer(t *testing.T) {
	h := decreasing(t, 4)
	if requeue := h.expect(applyStatusM); requeue != poolRetry {
		t.Errorf("looks again in %s", requeue)
	}
	h.expectReady(unconfirmed + choosing)
	h.after(poolRetry)
	h.expect()
	h.size(2, "m")
	h.expect(applyStatusM)
	h.expectReady(unconfirmed + telling)
	h.shards.byID["a"].removeFirst = []string{"m"}
	h.expect(deleteOfM, applyStatusM)

	// What was told once is told again without another look.
	h.scale(3)
	h.put(h.machinePools, newMachinePool(3))
	h.after(time.Minute)
	h.expect(deleteOfM)
}

func TestTheLastLookAtThePoolIsLive(t *testing.T) {
	h := decreasing(t, 5)
	h.scale(4)
	h.expect(applyStatusM)
	h.expectReady(unconfirmed + choosing)
	h.scale(5)
	h.expect(deleteOfM, applyStatusM)

	t.Run("and has to be understood", func(t *testing.T) {
		h := decreasing(t, 5)
		h.capi.Created = []*unstructured.Unstructured{{Object: map[string]any{
			"apiVersion": clusterv1.GroupVersion.String(), "kind": "Unheard", "metadata": map[string]any{"name": "machine-pool"},
		}}}
		for _, later := range []time.Duration{0, poolGrace, poolGrace} {
			h.after(later)
			if did, _, err := h.sync(); err == nil || slices.Contains(did, deleteOfM) {
				t.Errorf("did %q, error %v", did, err)
			}
		}
		// There were to be fewer all the time, and now that is known.
		h.capi.Created = nil
		h.scale(4)
		h.expect(applyStatusM)
		h.expectReady(unconfirmed + choosing)
	})
	t.Run("and may find nothing", func(t *testing.T) {
		h := decreasing(t, 4)
		h.put(h.machinePools, newMachinePool(5))
		h.capi.Created = nil
		h.expect(deleteOfM, applyStatusM)
	})
}

func TestTheEndOfAMemberDoesNotWaitForEver(t *testing.T) {
	h := decreasing(t, 4)
	h.expect(applyStatusM)
	h.after(poolGrace - time.Second)
	h.expect()

	// While the shard is away nobody can choose in vain.
	h.shards.byID["a"].reachable = false
	h.expect(applyStatusM)
	h.after(time.Hour)
	h.shards.byID["a"].reachable = true
	h.expect(applyStatusM)
	h.after(poolGrace - time.Second)
	h.expect()
	h.after(time.Second)
	h.expect(deleteOfM, applyStatusM)
}

func TestTheEndOfAMemberWaitsForNobody(t *testing.T) {
	for name, change := range map[string]func(*harness){
		"that the shard ends":          func(h *harness) { h.shards.notices["m"] = shard.Notice{State: shard.Deleting} },
		"that the shard lists to end":  func(h *harness) { h.shards.list(listed(shard.InstanceTerminating)) },
		"of a pool that was made anew": func(h *harness) { h.change(func(m *v1beta1.NstanceMachine) { m.OwnerReferences[0].UID = "former" }) },
		"of no pool": func(h *harness) {
			h.change(func(m *v1beta1.NstanceMachine) { m.OwnerReferences = m.OwnerReferences[1:] })
		},
		"of a pool of another project": func(h *harness) {
			h.change(func(m *v1beta1.NstanceMachine) { m.OwnerReferences[0].APIVersion = "example.com/v1" })
		},
		"of shard groups of nobody":     func(h *harness) { h.disown("a") },
		"of a pool that is not there":   func(h *harness) { h.remove("nstancemachinepools", "pool") },
		"of a shard group not yet made": func(h *harness) { h.remove("nstanceshardgroups", "workers--a") },
		"of two MachinePools": func(h *harness) {
			second := newMachinePool(5)
			second.Name = "second"
			h.put(h.machinePools, second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := decreasing(t, 4)
			change(h)
			h.expect(deleteOfM, applyStatusM)
		})
	}
	t.Run("but while it drains", func(t *testing.T) {
		h := decreasing(t, 4)
		h.shards.notices["m"] = shard.Notice{State: shard.Draining, Reason: "unhealthy"}
		h.expect(applyStatusM)
		h.expectReady(unconfirmed + choosing)
	})
	t.Run("when nobody has it of a pool", func(t *testing.T) {
		h := newHarness(t, newShards("a"), deleting(running(newMachine("m"), "i-1")))
		h.addPool(4, 3, 2)
		h.expect(deleteOnA, applyStatusM)
	})
}

// disown has nobody own the shard group of a shard.
func (h *harness) disown(id string) {
	h.t.Helper()
	group := newShardGroup(id, 3)
	group.OwnerReferences = nil
	if err := h.Tracker().Update(shardGroups, group, namespace); err != nil {
		h.t.Fatal(err)
	}
}

// remove takes an object from the API server.
func (h *harness) remove(resource, name string) {
	h.t.Helper()
	if err := h.Tracker().Delete(v1beta1.SchemeGroupVersion.WithResource(resource), namespace, name); err != nil {
		h.t.Fatal(err)
	}
}
