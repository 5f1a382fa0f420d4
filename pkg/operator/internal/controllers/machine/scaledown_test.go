// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

const (
	deleteMOnA   = "delete m on a"
	selecting    = `MachinePool "machine-pool" wants 4 replicas, and the pool is selecting which of 5 instances are deleted`
	sizeLowered  = `pool "pool" is being deleted, and its size on shard "a" is being lowered`
	notConfirmed = `shard "a" has not confirmed yet that it does not replace the instance`
)

func TestWhatTheDeletionOfAPoolMemberWaitsFor(t *testing.T) {
	paused := map[string]string{clusterv1.PausedAnnotation: ""}
	now := ptr.To(metav1.Now())
	for name, test := range map[string]struct {
		change func(*poolScale)
		want   string
	}{
		"as many as wanted":                         {func(*poolScale) {}, ""},
		"more are wanted":                           {func(s *poolScale) { s.machinePool = newMachinePool(6) }, ""},
		"fewer are wanted":                          {func(s *poolScale) { s.machinePool = newMachinePool(4) }, selecting},
		"fewer, and a candidate":                    {func(s *poolScale) { s.machinePool = newMachinePool(4); s.groups[0] = newShardGroup("a", 3, "m") }, selecting},
		"a candidate":                               {func(s *poolScale) { s.groups[0] = newShardGroup("a", 3, "other", "m") }, notConfirmed},
		"a candidate, and the shard confirmed":      {func(s *poolScale) { s.groups[0] = newShardGroup("a", 3, "m"); s.reported.RemoveFirst = []string{"m"} }, ""},
		"a candidate, and the shard cannot confirm": {func(s *poolScale) { s.groups[0] = newShardGroup("a", 3, "m"); s.reported = shard.Group{} }, ""},
		"fewer of a pool with guards": {func(s *poolScale) {
			s.machinePool, s.pool.Spec.ScaleDown = newMachinePool(4), &v1beta1.ScaleDownGuards{}
		}, selecting},
		"fewer of a pool with guards, and a candidate": {func(s *poolScale) {
			s.machinePool, s.pool.Spec.ScaleDown = newMachinePool(4), &v1beta1.ScaleDownGuards{}
			s.groups[0] = newShardGroup("a", 3, "m")
		}, notConfirmed},
		"fewer of a pool with guards, and a candidate, and the shard confirmed": {func(s *poolScale) {
			s.machinePool, s.pool.Spec.ScaleDown = newMachinePool(4), &v1beta1.ScaleDownGuards{}
			s.groups[0], s.reported.RemoveFirst = newShardGroup("a", 3, "m"), []string{"m"}
		}, ""},
		"others are candidates":                       {func(s *poolScale) { s.groups[0] = newShardGroup("a", 3, "other") }, ""},
		"a candidate on another shard":                {func(s *poolScale) { s.groups[1] = newShardGroup("b", 2, "m") }, ""},
		"fewer of a deleted pool":                     {func(s *poolScale) { s.machinePool = newMachinePool(4); s.pool = nil }, ""},
		"a pool that is being deleted":                {func(s *poolScale) { s.pool.DeletionTimestamp = now }, sizeLowered},
		"the same without a MachinePool":              {func(s *poolScale) { s.pool.DeletionTimestamp, s.machinePool = now, nil }, sizeLowered},
		"a candidate of a pool that is being deleted": {func(s *poolScale) { s.pool.DeletionTimestamp, s.groups[0] = now, newShardGroup("a", 2, "m") }, notConfirmed},
		"the shard has nothing to replace":            {func(s *poolScale) { s.pool.DeletionTimestamp, s.groups[0] = now, newShardGroup("a", 0) }, ""},
		"the shard group is deleted":                  {func(s *poolScale) { s.pool.DeletionTimestamp, s.groups = now, s.groups[1:] }, ""},
		"the shard group is being deleted": {func(s *poolScale) {
			s.pool.DeletionTimestamp, s.groups[0] = now, newShardGroup("a", 2, "m")
			s.groups[0].DeletionTimestamp = now
		}, ""},
		"a paused pool that is being deleted":          {func(s *poolScale) { s.pool.DeletionTimestamp, s.pool.Annotations = now, paused }, ""},
		"fewer of a paused pool":                       {func(s *poolScale) { s.machinePool = newMachinePool(4); s.pool.Annotations = paused }, ""},
		"no MachinePool":                               {func(s *poolScale) { s.machinePool = nil }, ""},
		"no replicas":                                  {func(s *poolScale) { s.machinePool.Spec.Replicas = nil }, ""},
		"fewer of a MachinePool that is being deleted": {func(s *poolScale) { s.machinePool = newMachinePool(4); s.machinePool.DeletionTimestamp = now }, ""},
		"fewer of a paused MachinePool":                {func(s *poolScale) { s.machinePool = newMachinePool(4); s.machinePool.Annotations = paused }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			scale := poolScale{
				pool: newPool(), machinePool: newMachinePool(5),
				groups:   []*v1beta1.NstanceShardGroup{newShardGroup("a", 3), newShardGroup("b", 2)},
				reported: shard.Group{ListsInstances: true},
			}
			test.change(&scale)
			if got := scale.waitingFor("a", "m"); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

const notDeleted = "False Deleting: the shard has not confirmed that the instance is deleted: "

// newScaleDown returns a harness with a pool member that is being deleted. The pool
// wants 3 instances on shard a and 2 on shard b.
func newScaleDown(t *testing.T, replicas int32) *harness {
	t.Helper()
	h := newHarness(t, newShards("a", "b"), deleting(owned(runningPoolMember("m"))))
	h.list(listed(shard.InstanceRunning))
	h.addPool(replicas, 3, 2)
	return h
}

func TestAPoolMemberThatIsReplacedIsDeletedAtOnce(t *testing.T) {
	h := newScaleDown(t, 5)
	if requeue := h.Expect(deleteMOnA, applyStatusM); requeue != queryBackoff.Duration {
		t.Errorf("repeats it in %s", requeue)
	}
	h.expectReady("False Deleting: the shard is deleting the instance")
	h.shardA().Deleted = true
	h.Advance(time.Minute)
	h.Expect(deleteMOnA, patchM)
	if h.nstanceMachine("m") != nil {
		t.Error("it is still there")
	}
}

func TestAPoolMemberIsDeletedWhenItsShardHasConfirmedTheScaleDown(t *testing.T) {
	h := newScaleDown(t, 4)
	if requeue := h.Expect(applyStatusM); requeue != poolRetry {
		t.Errorf("syncs again in %s", requeue)
	}
	h.expectReady(notDeleted + selecting)
	h.Advance(poolRetry)
	h.Expect()
	h.resize(2, "m")
	h.Expect(applyStatusM)
	h.expectReady(notDeleted + notConfirmed)
	h.changeGroup(func(g *shard.Group) { g.RemoveFirst = []string{"m"} })
	h.Expect(deleteMOnA, applyStatusM)

	// The deletion is repeated without another check of the pool.
	h.scale(3)
	h.Put(h.Informers.MachinePools, newMachinePool(3))
	h.Advance(time.Minute)
	h.Expect(deleteMOnA)
}

func TestTheLastReadOfTheReplicasIsLive(t *testing.T) {
	h := newScaleDown(t, 5)
	h.scale(4)
	h.Expect(applyStatusM)
	h.expectReady(notDeleted + selecting)
	h.scale(5)
	h.Expect(deleteMOnA, applyStatusM)

	t.Run("and must succeed", func(t *testing.T) {
		h := newScaleDown(t, 5)
		h.CAPI.Created = []*unstructured.Unstructured{{Object: map[string]any{
			"apiVersion": clusterv1.GroupVersion.String(), "kind": "Unknown", "metadata": map[string]any{"name": "machine-pool"},
		}}}
		for _, later := range []time.Duration{0, poolGrace, poolGrace} {
			h.Advance(later)
			if did, _, err := h.Sync(); err == nil || slices.Contains(did, deleteMOnA) {
				t.Errorf("did %q, error %v", did, err)
			}
		}
		// The replicas were lower all the time, and now the read succeeds.
		h.CAPI.Created = nil
		h.scale(4)
		h.Expect(applyStatusM)
		h.expectReady(notDeleted + selecting)
	})
	t.Run("and may find no MachinePool", func(t *testing.T) {
		h := newScaleDown(t, 4)
		h.Put(h.Informers.MachinePools, newMachinePool(5))
		h.CAPI.Created = nil
		h.Expect(deleteMOnA, applyStatusM)
	})
}

func TestTheDeletionOfAPoolMemberDoesNotWaitForEver(t *testing.T) {
	h := newScaleDown(t, 4)
	h.Expect(applyStatusM)
	h.Advance(poolGrace - time.Second)
	h.Expect()

	// The time while the shard is disconnected does not count.
	h.shardA().Reachable = false
	h.Expect(applyStatusM)
	h.Advance(time.Hour)
	h.shardA().Reachable = true
	h.Expect(applyStatusM)
	h.Advance(poolGrace - time.Second)
	h.Expect()
	h.Advance(time.Second)
	h.Expect(deleteMOnA, applyStatusM)
}

func TestWhenTheDeletionOfAPoolMemberDoesNotWait(t *testing.T) {
	for name, change := range map[string]func(*harness){
		"the shard is deleting it":          func(h *harness) { h.shardA().Notices["m"] = shard.DeletionNotice{State: shard.Deleting} },
		"the shard lists it as terminating": func(h *harness) { h.list(listed(shard.InstanceTerminating)) },
		"the pool was created again":        func(h *harness) { h.change(func(m *v1beta1.NstanceMachine) { m.OwnerReferences[0].UID = "former" }) },
		"it has no pool": func(h *harness) {
			h.change(func(m *v1beta1.NstanceMachine) { m.OwnerReferences = m.OwnerReferences[1:] })
		},
		"the owner is a pool of another API group": func(h *harness) {
			h.change(func(m *v1beta1.NstanceMachine) { m.OwnerReferences[0].APIVersion = "example.com/v1" })
		},
		"the shard group is not the pool's":  func(h *harness) { h.disown("a") },
		"the pool was deleted":               func(h *harness) { h.deleteObject("nstancemachinepools", "pool") },
		"the shard group does not exist yet": func(h *harness) { h.deleteObject("nstanceshardgroups", "workers--a") },
		"there are two MachinePools": func(h *harness) {
			second := newMachinePool(5)
			second.Name = "second"
			h.Put(h.Informers.MachinePools, second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newScaleDown(t, 4)
			change(h)
			h.Expect(deleteMOnA, applyStatusM)
		})
	}
	t.Run("but does while the shard drains it", func(t *testing.T) {
		h := newScaleDown(t, 4)
		h.shardA().Notices["m"] = shard.DeletionNotice{State: shard.Draining, Reason: "unhealthy"}
		h.Expect(applyStatusM)
		h.expectReady(notDeleted + selecting)
	})
	t.Run("without a pool", func(t *testing.T) {
		h := newHarness(t, newShards("a"), deleting(running(newNstanceMachine("m"), "i-1")))
		h.addPool(4, 3, 2)
		h.Expect(deleteOnA, applyStatusM)
	})
}

// disown removes the owner reference of a shard group.
func (h *harness) disown(id string) {
	h.T.Helper()
	controllertest.Change(h.API, v1beta1.ShardGroupName("workers", id), func(group *v1beta1.NstanceShardGroup) { group.OwnerReferences = nil })
}

// deleteObject deletes an object from the API server.
func (h *harness) deleteObject(resource, name string) {
	h.T.Helper()
	require.NoError(h.T, h.Tracker().Delete(v1beta1.SchemeGroupVersion.WithResource(resource), controllertest.Namespace, name))
}
