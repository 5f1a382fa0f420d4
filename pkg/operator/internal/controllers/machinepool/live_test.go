// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

// newInstance returns the NstanceMachine of an instance, and its Machine.
func newInstance(id, shard string, change func(*clusterv1.Machine)) (*v1beta1.NstanceMachine, *clusterv1.Machine) {
	machine := controllertest.NewMachine(id)
	machine.Labels = map[string]string{clusterv1.ClusterNameLabel: "cluster", clusterv1.MachinePoolNameLabel: "workers"}
	if change != nil {
		change(machine)
	}
	return &v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: id, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1beta1.SchemeGroupVersion.String(), Kind: v1beta1.PoolKind, Name: "workers", UID: "uid-workers",
		}}},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"}, Shard: v1beta1.Identifier(shard)},
	}, machine
}

func annotatedAt(at string) func(*clusterv1.Machine) {
	return func(machine *clusterv1.Machine) {
		machine.Annotations = map[string]string{clusterv1.DeleteMachineAnnotation: at}
	}
}

// newPoolWithMachines returns a harness of the pool "workers" with Machines, with these
// instances by shard. change changes the Machines by id.
func newPoolWithMachines(t *testing.T, instances map[string][]string, change map[string]func(*clusterv1.Machine)) *harness {
	t.Helper()
	pool := newPool("a", "b", "c")
	pool.Spec.MachineMode = v1beta1.MachineModeAlways
	groups, objects := map[string]*shard.Group{}, []runtime.Object{pool}
	var machines []runtime.Object
	for _, shard := range []string{"a", "b", "c"} {
		ids := instances[shard]
		groups[shard] = listed(ids...)
		objects = append(objects, ready(newShardGroup(pool, shard, int32(len(ids)))))
		for _, id := range ids {
			nstanceMachine, machine := newInstance(id, shard, change[id])
			objects, machines = append(objects, nstanceMachine), append(machines, machine)
		}
	}
	h := newHarness(t, withGroups(groups), objects...)
	h.CAPI.Has(t, machines...)
	// Written like the controller does, so that it can remove it.
	pool.Status.InfrastructureMachineKind = v1beta1.MachineKind
	_, err := h.controller.pools.ApplyStatus(t.Context(), applyStatus(pool, pool.Status), controllers.Apply)
	require.NoError(t, err)
	h.Writes()
	h.Show()
	return h
}

// live sets the replicas of the MachinePool on the API server and in the cache.
func (h *harness) live(replicas int32) {
	h.T.Helper()
	h.scale(replicas)
	object := machinePool("workers", &replicas)
	object.TypeMeta = metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool"}
	h.CAPI.Has(h.T, object)
}

func TestAnnotatedInstanceIsRemovedFirst(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1"}, "c": {"c1"}},
		map[string]func(*clusterv1.Machine){"b1": annotatedAt("now")})
	h.live(3)
	writes, _, err := h.sync()
	if err != nil || !slices.Contains(writes, groupB) || slices.Contains(writes, groupA) {
		t.Errorf("wrote %q, error %v", writes, err)
	}
	if spec := h.shardGroup("b").Spec; spec.Size != 0 || !slices.Equal(spec.RemoveFirst, []string{"b1"}) {
		t.Errorf("shard b became %+v", spec)
	}
	// It stays uneven.
	h.Show()
	h.expect()
}

// A Machine that is deleted to be replaced is not removed instead of the Machine whose Node
// the autoscaler drained.
func TestAnnotatedInstanceIsRemovedBeforeDeletedMachine(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1"}, "c": {"c1"}},
		map[string]func(*clusterv1.Machine){"a1": deletingNow, "b1": annotatedAt("now")})
	h.live(3)
	_, _, err := h.sync()
	require.NoError(t, err)
	for shard, want := range map[string]v1beta1.NstanceShardGroupSpec{"a": {Size: 2}, "b": {RemoveFirst: []string{"b1"}}, "c": {Size: 1}} {
		if got := h.shardGroup(shard).Spec; got.Size != want.Size || !slices.Equal(got.RemoveFirst, want.RemoveFirst) {
			t.Errorf("shard %s became %d with %q first, want %d with %q", shard, got.Size, got.RemoveFirst, want.Size, want.RemoveFirst)
		}
	}
}

// Successive candidates are each selected once, even if the cache of MachinePools is stale.
func TestCandidatesOneAfterTheOther(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1", "b2"}, "c": {"c1"}},
		map[string]func(*clusterv1.Machine){"b2": annotatedAt("1"), "a1": annotatedAt("2"), "c1": annotatedAt("3")})
	h.live(3)
	h.scale(4)
	_, _, err := h.sync()
	require.NoError(t, err)
	for shard, want := range map[string]v1beta1.NstanceShardGroupSpec{
		"a": {Size: 1, RemoveFirst: []string{"a1"}}, "b": {Size: 1, RemoveFirst: []string{"b2"}}, "c": {Size: 1},
	} {
		if got := h.shardGroup(shard).Spec; got.Size != want.Size || !slices.Equal(got.RemoveFirst, want.RemoveFirst) {
			t.Errorf("shard %s became %d with %q first, want %d with %q", shard, got.Size, got.RemoveFirst, want.Size, want.RemoveFirst)
		}
	}
	h.Show()
	h.CAPI.Created = slices.DeleteFunc(h.CAPI.Created, func(object *unstructured.Unstructured) bool { return object.GetKind() == "MachinePool" })
	h.live(2)
	_, _, err = h.sync()
	require.NoError(t, err)
	if got := h.shardGroup("c").Spec; got.Size != 0 || !slices.Equal(got.RemoveFirst, []string{"c1"}) {
		t.Errorf("shard c became %+v", got)
	}
}

// A new leader with a stale cache does not select again.
func TestStaleShardGroupsSelectNothing(t *testing.T) {
	for name, change := range map[string]func(*v1beta1.NstanceShardGroup){
		"of an older generation":              func(group *v1beta1.NstanceShardGroup) { group.Generation = 2 },
		"deleted and created again meanwhile": func(group *v1beta1.NstanceShardGroup) { group.UID = "another" },
	} {
		t.Run(name, func(t *testing.T) {
			h := newPoolWithMachines(t, map[string][]string{"a": {"a1"}, "b": {"b1"}, "c": {"c1"}}, nil)
			h.live(2)
			// The former leader wrote this, and the selected instance was deleted since.
			group := h.shardGroup("a")
			group.Spec.Size, group.Spec.RemoveFirst = 0, []string{"a1"}
			change(group)
			require.NoError(t, h.Tracker().Update(v1beta1.SchemeGroupVersion.WithResource("nstanceshardgroups"), group, controllertest.Namespace))
			writes, wait, err := h.sync()
			if err != nil || len(writes) > 0 || wait != controller.StaleRetry {
				t.Errorf("wrote %q and waits %s, error %v", writes, wait, err)
			}
			h.Show()
			h.report("a", func(group *v1beta1.NstanceShardGroup) { ready(group) })
			_, _, err = h.sync()
			require.NoError(t, err)
			h.expectSizes(map[string]int32{"a": 0, "b": 1, "c": 1})
		})
	}
}

// Without a candidate the largest shard shrinks, and a scale-up grows the smallest.
func TestWithoutCandidateTheLargestShardShrinks(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1"}, "b": {"b1", "b2", "b3"}, "c": {"c1"}}, nil)
	h.live(4)
	_, _, err := h.sync()
	require.NoError(t, err)
	if got := h.shardGroup("b").Spec; got.Size != 2 || got.RemoveFirst != nil {
		t.Errorf("shard b became %+v", got)
	}
	h.Show()
	h.scale(6)
	_, _, err = h.sync()
	require.NoError(t, err)
	h.expectSizes(map[string]int32{"a": 2, "b": 2, "c": 2})
}

// Without Machines, a pool that became uneven stays as it is until its replicas
// change.
func TestDisablingMachinesMovesNothing(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1"}, "b": {"b1", "b2", "b3"}, "c": nil}, nil)
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { pool.Spec.MachineMode = v1beta1.MachineModeNever })
	h.scale(4)
	for range 3 {
		_, _, err := h.sync()
		require.NoError(t, err)
		h.Show()
	}
	if kind := h.pool().Status.InfrastructureMachineKind; kind != "" {
		t.Errorf("the kind of its Machines is %q", kind)
	}
	h.expectSizes(map[string]int32{"a": 1, "b": 3, "c": 0})
	h.expect()
	h.scale(5)
	_, _, err := h.sync()
	require.NoError(t, err)
	h.expectSizes(map[string]int32{"a": 2, "b": 2, "c": 1})
}

// A shard group without its labels is found, and gets them back.
func TestScaleDownRevertsLabels(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1"}, "b": {"b1", "b2"}, "c": {"c1"}},
		map[string]func(*clusterv1.Machine){"a1": annotatedAt("now")})
	h.report("b", func(group *v1beta1.NstanceShardGroup) { group.Labels = nil })
	h.live(3)
	if writes, wait, err := h.sync(); err != nil || wait != 0 || !slices.Contains(writes, groupA) || !slices.Contains(writes, groupB) {
		t.Errorf("wrote %q and waits %s, error %v", writes, wait, err)
	}
}

func deletingNow(machine *clusterv1.Machine) {
	now := metav1.Now()
	machine.DeletionTimestamp = &now
	machine.Finalizers = []string{clusterv1.MachineFinalizer}
}

// A lost instance was replaced. Its NstanceMachine reports that, even if the shard is
// not synced.
func TestLostInstanceIsNoCandidate(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1"}, "c": {"c1"}},
		map[string]func(*clusterv1.Machine){"a1": deletingNow, "b1": annotatedAt("now")})
	lost, err := h.InfrastructureV1beta1().NstanceMachines(controllertest.Namespace).Get(t.Context(), "a1", metav1.GetOptions{})
	require.NoError(t, err)
	controller.SetCondition(&lost.Status.Conditions, 1, v1beta1.ConditionServerDeleted, metav1.ConditionTrue, v1beta1.ReasonServerDeleted, "deleted")
	require.NoError(t, h.Tracker().Update(v1beta1.SchemeGroupVersion.WithResource("nstancemachines"), lost, controllertest.Namespace))
	h.Show()
	h.live(3)
	_, _, err = h.sync()
	require.NoError(t, err)
	h.expectSizes(map[string]int32{"a": 2, "b": 0, "c": 1})
}

// A Machine whose NstanceMachine belongs to another pool is no candidate, in spite of its
// labels.
func TestMachineOutsideThePoolIsNoCandidate(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1", "b2", "b3"}, "c": {"c1"}}, nil)
	foreign, machine := newInstance("pod-xyz", "a", deletingNow)
	foreign.OwnerReferences = nil
	_, err := h.InfrastructureV1beta1().NstanceMachines(controllertest.Namespace).Create(t.Context(), foreign, metav1.CreateOptions{})
	require.NoError(t, err)
	h.Writes()
	h.CAPI.Has(t, machine)
	h.Show()
	h.live(5)
	_, _, err = h.sync()
	require.NoError(t, err)
	for shard, size := range map[string]int32{"a": 2, "b": 2, "c": 1} {
		if got := h.shardGroup(shard).Spec; got.Size != size || got.RemoveFirst != nil {
			t.Errorf("shard %s has size %d with %q first, want %d", shard, got.Size, got.RemoveFirst, size)
		}
	}
}

// Changes of a paused pool have no effect, even if the cache has neither the pause nor
// the changes.
func TestUncachedPauseSelectsNothing(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1"}, "b": {"b1"}, "c": {"c1"}}, nil)
	h.scale(2)
	paused := machinePool("workers", ptr.To[int32](0))
	paused.TypeMeta = metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool"}
	paused.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	h.CAPI.Has(t, paused)
	if writes, wait, err := h.sync(); err != nil || len(writes) > 0 || wait != controller.StaleRetry {
		t.Errorf("wrote %q and waits %s, error %v", writes, wait, err)
	}
}

// The autoscaler reverts a scale-up without a candidate if the instances do not come
// (https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md). That
// must not remove a running instance.
func TestMissingInstancesAreRemovedFirst(t *testing.T) {
	for name, test := range map[string]struct {
		reported *shard.Group
		first    []string
	}{
		"the instance is pending": {&shard.Group{Key: "workers", Size: 1, ListsInstances: true,
			Instances: []shard.Instance{{ID: "b1", State: shard.InstancePending}}}, []string{"b1"}},
		"the size was not sent": {&shard.Group{Key: "workers", ListsInstances: true}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1"}, "c": {"c1"}}, nil)
			h.Fake.SetGroup("b", *test.reported)
			h.live(3)
			_, _, err := h.sync()
			require.NoError(t, err)
			if got := h.shardGroup("a").Spec; got.Size != 2 {
				t.Errorf("shard a became %+v", got)
			}
			if got := h.shardGroup("b").Spec; got.Size != 0 || !slices.Equal(got.RemoveFirst, test.first) {
				t.Errorf("shard b became %+v", got)
			}
		})
	}
}

// An instance was selected, and a scale-up revoked that before it was terminated. Its
// Machine is still being deleted, and is a candidate of the next scale-down.
func TestRevokedSelectionIsACandidateAgain(t *testing.T) {
	deleting := func(machine *clusterv1.Machine) {
		machine.DeletionTimestamp, machine.Finalizers = ptr.To(metav1.Now()), []string{"example.com/wait"}
	}
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1", "b2", "b3"}, "c": {"c1"}},
		map[string]func(*clusterv1.Machine){"a1": deleting})
	replicas := func(now int32) {
		t.Helper()
		h.CAPI.Created = slices.DeleteFunc(h.CAPI.Created, func(object *unstructured.Unstructured) bool { return object.GetKind() == "MachinePool" })
		h.live(now)
		h.Show()
		_, _, err := h.sync()
		require.NoError(t, err)
		h.Show()
	}
	replicas(5)
	h.expectSizes(map[string]int32{"a": 1, "b": 3, "c": 1})
	replicas(6)
	h.expectSizes(map[string]int32{"a": 2, "b": 3, "c": 1})
	replicas(5)
	h.expectSizes(map[string]int32{"a": 1, "b": 3, "c": 1})
}

// The MachinePool was deleted and created again, and the cache has the deleted object.
func TestReplacedMachinePoolSelectsNothing(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1"}, "c": {"c1"}}, nil)
	replicas := int32(3)
	h.scale(replicas)
	another := machinePool("workers", &replicas)
	another.TypeMeta = metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool"}
	another.UID = "another"
	h.CAPI.Has(t, another)
	writes, requeue, err := h.sync()
	require.NoError(t, err)
	assert.Empty(t, writes)
	assert.Positive(t, requeue)
}

// The labels of a Machine and the owner of its NstanceMachine have the name of the pool,
// and belong to a former pool.
func TestInstanceOfAFormerPoolIsNoCandidate(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1"}, "c": {"c1"}},
		map[string]func(*clusterv1.Machine){"a2": annotatedAt("now")})
	controllertest.Change(h.API, "a2", func(former *v1beta1.NstanceMachine) { former.OwnerReferences[0].UID = "former" })
	h.Show()
	h.live(3)
	_, _, err := h.sync()
	require.NoError(t, err)
	h.expectSizes(map[string]int32{"a": 1, "b": 1, "c": 1})
	assert.Empty(t, h.shardGroup("a").Spec.RemoveFirst)
}

// The caches of a new leader may have different ages. If the shard groups are newer than the
// replicas, no instance is terminated for replicas of the past.
func TestStaleReplicasShrinkNothing(t *testing.T) {
	pool := newPool("a", "b")
	h := newHarness(t, withSizes(map[string]int32{"a": 5, "b": 5}), pool, newShardGroup(pool, "a", 5), newShardGroup(pool, "b", 5))
	h.scale(4)
	h.CAPI.Has(t, machinePool("workers", ptr.To[int32](10)))
	_, requeue, err := h.sync()
	require.NoError(t, err)
	assert.Positive(t, requeue)
	h.expectSizes(map[string]int32{"a": 5, "b": 5})
	// A size that grows terminates nothing, and does not wait.
	h.scale(12)
	h.expect(poolStatus, groupA, groupB)
}

// If the shard groups are newer than the pool, the group of a shard that was just added is not
// deleted.
func TestStalePoolDeletesNoShardGroup(t *testing.T) {
	old, pool := newPool("a", "b"), newPool("a", "b", "c")
	pool.Generation = 2
	h := newHarness(t, withSizes(map[string]int32{"a": 2, "b": 2, "c": 2}), pool,
		newShardGroup(pool, "a", 2), newShardGroup(pool, "b", 2), newShardGroup(pool, "c", 2))
	h.scale(6)
	old.ResourceVersion = "1"
	h.Put(h.Informers.Nstance.NstanceMachinePools().Informer(), old)
	_, requeue, err := h.sync()
	require.NoError(t, err)
	assert.Positive(t, requeue)
	assert.Zero(t, h.shardGroup("c").DeletionTimestamp)
	h.expectSizes(map[string]int32{"a": 2, "b": 2, "c": 2})
}

func TestFailedReadsShrinkNothing(t *testing.T) {
	pool := newPool("a", "b")
	h := newHarness(t, withSizes(map[string]int32{"a": 5, "b": 5}), pool, newShardGroup(pool, "a", 5), newShardGroup(pool, "b", 5))
	h.Put(h.Informers.MachinePools, machinePool("workers", ptr.To[int32](4)))
	_, requeue, err := h.sync()
	require.NoError(t, err)
	assert.Positive(t, requeue, "the MachinePool does not exist any more")
	failed := errors.New("failed")
	h.Fail("get nstancemachinepools workers", failed)
	_, _, err = h.sync()
	require.ErrorIs(t, err, failed)
	h.expectSizes(map[string]int32{"a": 5, "b": 5})
}

// A restore gives shard groups owners that no longer exist, which the garbage collector deletes.
func TestWants(t *testing.T) {
	pool := newPool("a", "b")
	h := newHarness(t, withSizes(nil), pool)
	owned := newShardGroup(pool, "a", 2)
	former := newShardGroup(pool, "a", 2)
	former.OwnerReferences[0].UID = "uid-of-a-former-pool"
	orphan := newShardGroup(pool, "a", 2)
	orphan.OwnerReferences = nil
	removed := former.DeepCopy()
	removed.Spec.Shard = "c"
	for name, test := range map[string]struct {
		group *v1beta1.NstanceShardGroup
		want  bool
	}{
		"of the pool": {owned, false}, "of a former pool": {former, true}, "of no pool": {orphan, true}, "on a shard that the pool does not have": {removed, false},
	} {
		got, err := h.controller.Wants(t.Context(), test.group)
		require.NoError(t, err)
		assert.Equal(t, test.want, got, name)
	}
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { controllertest.Deleting(pool) })
	got, err := h.controller.Wants(t.Context(), former)
	require.NoError(t, err)
	assert.False(t, got, "of a pool that is being deleted")
}
