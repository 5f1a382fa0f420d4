// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/shard"
)

func TestChoose(t *testing.T) {
	pool := newPool("b", "a")
	state := func(id string, size int32, ids ...string) shardState {
		return shardState{id: id, configured: true, synced: true, reported: listed(ids...), group: newShardGroup(pool, id, size)}
	}
	annotated := func(id, shard, at string) wish { return wish{id: id, shard: shard, annotated: true, at: at} }
	deleting := func(id, shard string) wish { return wish{id: id, shard: shard} }
	for name, test := range map[string]struct {
		wishes []wish
		change func([]shardState)
		want   string
	}{
		"nobody":                     {nil, nil, ""},
		"the annotated one":          {[]wish{annotated("a2", "a", "now")}, nil, "a2@1"},
		"the earliest first":         {[]wish{annotated("a1", "a", "2026-11-21 10:00:02"), annotated("b1", "b", "2026-11-21 10:00:01")}, nil, "b1@0 a1@1"},
		"at one time by name":        {[]wish{annotated("b2", "b", ""), annotated("a1", "a", ""), annotated("b1", "b", "")}, nil, "a1@1 b1@0 b2@0"},
		"the deleted ones after all": {[]wish{deleting("b2", "b"), deleting("b1", "b"), annotated("a1", "a", "")}, nil, "a1@1 b1@0 b2@0"},
		"one that was chosen before is done with": {[]wish{annotated("a1", "a", ""), annotated("a2", "a", "")}, func(shards []shardState) {
			shards[1].group.Spec.RemoveFirst = []string{"a1"}
		}, "a2@1"},
		"one that has ended has been replaced": {[]wish{deleting("a9", "a"), annotated("a2", "a", "")}, nil, "a2@1"},
		"one that is ending too": {[]wish{deleting("a1", "a"), deleting("a2", "a")}, func(shards []shardState) {
			shards[1].reported.Instances[0].State = shard.InstanceTerminating
			shards[1].reported.Instances[1].State = shard.InstanceTerminated
		}, ""},
		"of a shard that was not read nothing is known to have ended": {[]wish{annotated("a9", "a", "")}, func(shards []shardState) {
			shards[1].synced, shards[1].reported = false, nil
		}, "a9@1"},
		"nor of a server that lists none": {[]wish{annotated("a9", "a", "")}, func(shards []shardState) {
			shards[1].reported = &shard.Group{}
		}, "a9@1"},
		"one with two Machines once":                   {[]wish{annotated("a1", "a", "2"), annotated("b1", "b", "1"), deleting("a1", "a")}, nil, "b1@0 a1@1"},
		"one of a shard that the pool no longer names": {[]wish{annotated("c1", "c", "")}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			shards := []shardState{state("b", 2, "b1", "b2"), state("a", 2, "a1", "a2")}
			if test.change != nil {
				test.change(shards)
			}
			var got []string
			for _, victim := range choose(test.wishes, shards) {
				got = append(got, fmt.Sprintf("%s@%d", victim.ID, victim.Shard))
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// The instances to go are written with the size, stay with it, and are forgotten
// with a later size when they have gone, or when that leaves none too many.
func TestRemoveFirst(t *testing.T) {
	group := newShardGroup(newPool("a"), "a", 3)
	group.Spec.RemoveFirst = []string{"a1", "a2"}
	state := shardState{id: "a", synced: true, group: group, reported: listed("a2", "a3", "a4")}
	if got := state.removeFirst(3, nil); !slices.Equal(got, []string{"a1", "a2"}) {
		t.Errorf("with the same size they became %q", got)
	}
	if got := state.removeFirst(2, []string{"a4"}); !slices.Equal(got, []string{"a2", "a4"}) {
		t.Errorf("with one less they became %q", got)
	}
	if got := state.removeFirst(4, nil); len(got) > 0 {
		t.Errorf("with one more they became %q", got)
	}
	// It is one of two that are too many for a size of 3, and of one for 4.
	state.reported = listed("a2", "a3", "a4", "a5", "a6")
	if got := state.removeFirst(4, nil); !slices.Equal(got, []string{"a2"}) {
		t.Errorf("with one more than that they became %q", got)
	}
	state.synced = false
	if got := state.removeFirst(4, nil); !slices.Equal(got, []string{"a1", "a2"}) {
		t.Errorf("without knowing the shard they became %q", got)
	}
	if !slices.Equal(group.Spec.RemoveFirst, []string{"a1", "a2"}) {
		t.Error("the object of the cache was changed")
	}
}

// member is the NstanceMachine of an instance, and its Machine.
func member(id, shard string, change func(*clusterv1.Machine)) (*v1beta1.NstanceMachine, *clusterv1.Machine) {
	machine := &clusterv1.Machine{
		TypeMeta: metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine"},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: id, UID: types.UID("uid-" + id), Labels: map[string]string{
			clusterv1.ClusterNameLabel: "cluster", clusterv1.MachinePoolNameLabel: "workers",
		}},
	}
	machine.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: v1beta1.MachineKind, Name: id}
	if change != nil {
		change(machine)
	}
	return &v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: id, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1beta1.SchemeGroupVersion.String(), Kind: v1beta1.PoolKind, Name: "workers", UID: "uid-workers",
		}}},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"}, Shard: v1beta1.Identifier(shard)},
	}, machine
}

func chosenAt(at string) func(*clusterv1.Machine) {
	return func(machine *clusterv1.Machine) {
		machine.Annotations = map[string]string{clusterv1.DeleteMachineAnnotation: at}
	}
}

// newPoolWithMachines is a harness of the pool "workers" with Machines, whose
// instances are these, by shard, and whose Machines are changed by id.
func newPoolWithMachines(t *testing.T, instances map[string][]string, change map[string]func(*clusterv1.Machine)) *harness {
	t.Helper()
	pool := newPool("a", "b", "c")
	pool.Spec.Machines = v1beta1.MachinesAlways
	groups, objects := shardGroups{}, []runtime.Object{pool}
	var machines []runtime.Object
	for _, shard := range []string{"a", "b", "c"} {
		ids := instances[shard]
		groups[shard] = listed(ids...)
		objects = append(objects, ready(newShardGroup(pool, shard, int32(len(ids)))))
		for _, id := range ids {
			member, machine := member(id, shard, change[id])
			objects, machines = append(objects, member), append(machines, machine)
		}
	}
	h := newHarness(t, groups, objects...)
	h.capi.Has(t, machines...)
	// Written as the controller does it, so that it can take it back.
	pool.Status.InfrastructureMachineKind = v1beta1.MachineKind
	if _, err := h.controller.pools.ApplyStatus(t.Context(), applyStatus(pool, pool.Status), controller.Apply); err != nil {
		t.Fatal(err)
	}
	h.Writes()
	h.show()
	return h
}

// live has the API server and the cache have the pool's MachinePool with these
// replicas.
func (h *harness) live(replicas int32) {
	h.t.Helper()
	h.scale(replicas)
	object := machinePool("workers", &replicas)
	object.TypeMeta = metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool"}
	h.capi.Has(h.t, object)
}

func TestTheChosenInstanceGoesFirst(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1"}, "c": {"c1"}},
		map[string]func(*clusterv1.Machine){"b1": chosenAt("now")})
	h.live(3)
	writes, _, err := h.sync()
	if err != nil || !slices.Contains(writes, groupB) || slices.Contains(writes, groupA) {
		t.Errorf("wrote %q, error %v", writes, err)
	}
	if spec := h.shardGroup("b").Spec; spec.Size != 0 || !slices.Equal(spec.RemoveFirst, []string{"b1"}) {
		t.Errorf("shard b became %+v", spec)
	}
	// Uneven as it is, it stays so.
	h.show()
	h.expect()
}

// A Machine that is deleted to be replaced does not take the place of the one whose
// Node was drained to have one less.
func TestTheChosenGoesAndTheDeletedIsReplaced(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1"}, "c": {"c1"}},
		map[string]func(*clusterv1.Machine){"a1": deletingNow, "b1": chosenAt("now")})
	h.live(3)
	if _, _, err := h.sync(); err != nil {
		t.Fatal(err)
	}
	for shard, want := range map[string]v1beta1.NstanceShardGroupSpec{"a": {Size: 2}, "b": {RemoveFirst: []string{"b1"}}, "c": {Size: 1}} {
		if got := h.shardGroup(shard).Spec; got.Size != want.Size || !slices.Equal(got.RemoveFirst, want.RemoveFirst) {
			t.Errorf("shard %s became %d with %q first, want %d with %q", shard, got.Size, got.RemoveFirst, want.Size, want.RemoveFirst)
		}
	}
}

// Chosen one after the other, each is taken once, also when the cache of
// MachinePools is behind.
func TestVictimsInARow(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1", "b2"}, "c": {"c1"}},
		map[string]func(*clusterv1.Machine){"b2": chosenAt("1"), "a1": chosenAt("2"), "c1": chosenAt("3")})
	h.live(3)
	h.scale(4)
	if _, _, err := h.sync(); err != nil {
		t.Fatal(err)
	}
	for shard, want := range map[string]v1beta1.NstanceShardGroupSpec{
		"a": {Size: 1, RemoveFirst: []string{"a1"}}, "b": {Size: 1, RemoveFirst: []string{"b2"}}, "c": {Size: 1},
	} {
		if got := h.shardGroup(shard).Spec; got.Size != want.Size || !slices.Equal(got.RemoveFirst, want.RemoveFirst) {
			t.Errorf("shard %s became %d with %q first, want %d with %q", shard, got.Size, got.RemoveFirst, want.Size, want.RemoveFirst)
		}
	}
	h.show()
	h.capi.Created = slices.DeleteFunc(h.capi.Created, func(object *unstructured.Unstructured) bool { return object.GetKind() == "MachinePool" })
	h.live(2)
	if _, _, err := h.sync(); err != nil {
		t.Fatal(err)
	}
	if got := h.shardGroup("c").Spec; got.Size != 0 || !slices.Equal(got.RemoveFirst, []string{"c1"}) {
		t.Errorf("shard c became %+v", got)
	}
}

// A new leader whose cache is behind does not choose a second time.
func TestStaleShardGroupsChooseNobody(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1"}, "b": {"b1"}, "c": {"c1"}}, nil)
	h.live(2)
	// The former leader has written this, and the chosen one has gone since.
	group := h.shardGroup("a")
	group.Spec.Size, group.Spec.RemoveFirst, group.Generation = 0, []string{"a1"}, 2
	if err := h.Tracker().Update(v1beta1.SchemeGroupVersion.WithResource("nstanceshardgroups"), group, namespace); err != nil {
		t.Fatal(err)
	}
	writes, wait, err := h.sync()
	if err != nil || len(writes) > 0 || wait != staleRetry {
		t.Errorf("wrote %q and waits %s, error %v", writes, wait, err)
	}
	h.show()
	h.report("a", func(group *v1beta1.NstanceShardGroup) { ready(group) })
	if _, _, err := h.sync(); err != nil {
		t.Fatal(err)
	}
	for shard, size := range map[string]int32{"a": 0, "b": 1, "c": 1} {
		if got := h.shardGroup(shard).Spec.Size; got != size {
			t.Errorf("shard %s has size %d, want %d", shard, got, size)
		}
	}
}

// What nobody chose comes from the largest shard, and growth fills the smallest.
func TestWithoutChoiceTheLargestShardShrinks(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1"}, "b": {"b1", "b2", "b3"}, "c": {"c1"}}, nil)
	h.live(4)
	if _, _, err := h.sync(); err != nil {
		t.Fatal(err)
	}
	if got := h.shardGroup("b").Spec; got.Size != 2 || got.RemoveFirst != nil {
		t.Errorf("shard b became %+v", got)
	}
	h.show()
	h.scale(6)
	if _, _, err := h.sync(); err != nil {
		t.Fatal(err)
	}
	for shard, size := range map[string]int32{"a": 2, "b": 2, "c": 2} {
		if got := h.shardGroup(shard).Spec.Size; got != size {
			t.Errorf("shard %s has size %d, want %d", shard, got, size)
		}
	}
}

// Switched off, a pool that has become uneven stays as it is until its replicas
// change.
func TestSwitchingMachinesOffMovesNothing(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1"}, "b": {"b1", "b2", "b3"}, "c": nil}, nil)
	pool := h.pool()
	pool.Spec.Machines = v1beta1.MachinesNever
	if err := h.Tracker().Update(v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools"), pool, namespace); err != nil {
		t.Fatal(err)
	}
	h.show()
	h.scale(4)
	for range 3 {
		if _, _, err := h.sync(); err != nil {
			t.Fatal(err)
		}
		h.show()
	}
	if kind := h.pool().Status.InfrastructureMachineKind; kind != "" {
		t.Errorf("the kind of its Machines is %q", kind)
	}
	for shard, size := range map[string]int32{"a": 1, "b": 3, "c": 0} {
		if got := h.shardGroup(shard).Spec.Size; got != size {
			t.Errorf("shard %s has size %d, want %d", shard, got, size)
		}
	}
	h.expect()
	h.scale(5)
	if _, _, err := h.sync(); err != nil {
		t.Fatal(err)
	}
	for shard, size := range map[string]int32{"a": 2, "b": 2, "c": 1} {
		if got := h.shardGroup(shard).Spec.Size; got != size {
			t.Errorf("shard %s has size %d, want %d", shard, got, size)
		}
	}
}

// A shard group without its labels is found all the same, and gets them back.
func TestShrinkingPutsLabelsRight(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1"}, "b": {"b1", "b2"}, "c": {"c1"}},
		map[string]func(*clusterv1.Machine){"a1": chosenAt("now")})
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

// An instance that was lost has been replaced, also when its shard was not read
// since: its NstanceMachine says so.
func TestLostInstanceIsNoVictim(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1"}, "c": {"c1"}},
		map[string]func(*clusterv1.Machine){"a1": deletingNow, "b1": chosenAt("now")})
	lost, err := h.InfrastructureV1beta1().NstanceMachines(namespace).Get(t.Context(), "a1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	controller.SetCondition(&lost.Status.Conditions, 1, v1beta1.ConditionServerDeleted, metav1.ConditionTrue, v1beta1.ReasonServerDeleted, "gone")
	if err := h.Tracker().Update(v1beta1.SchemeGroupVersion.WithResource("nstancemachines"), lost, namespace); err != nil {
		t.Fatal(err)
	}
	h.show()
	h.live(3)
	if _, _, err := h.sync(); err != nil {
		t.Fatal(err)
	}
	for shard, size := range map[string]int32{"a": 2, "b": 0, "c": 1} {
		if got := h.shardGroup(shard).Spec; got.Size != size {
			t.Errorf("shard %s has size %d with %q first, want %d", shard, got.Size, got.RemoveFirst, size)
		}
	}
}

// A Machine whose NstanceMachine is not the pool's says nothing about its
// instances, whatever its labels are.
func TestStrangerIsNoVictim(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1", "a2"}, "b": {"b1", "b2", "b3"}, "c": {"c1"}}, nil)
	stranger, machine := member("pod-xyz", "a", deletingNow)
	stranger.OwnerReferences = nil
	if _, err := h.InfrastructureV1beta1().NstanceMachines(namespace).Create(t.Context(), stranger, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	h.Writes()
	h.capi.Has(t, machine)
	h.show()
	h.live(5)
	if _, _, err := h.sync(); err != nil {
		t.Fatal(err)
	}
	for shard, size := range map[string]int32{"a": 2, "b": 2, "c": 1} {
		if got := h.shardGroup(shard).Spec; got.Size != size || got.RemoveFirst != nil {
			t.Errorf("shard %s has size %d with %q first, want %d", shard, got.Size, got.RemoveFirst, size)
		}
	}
}

// What happened to a pool that is paused is not followed, also when the cache shows
// neither the pause nor that.
func TestPausedMeanwhileChoosesNobody(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1"}, "b": {"b1"}, "c": {"c1"}}, nil)
	h.scale(2)
	paused := machinePool("workers", ptr.To[int32](0))
	paused.TypeMeta = metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool"}
	paused.Annotations = map[string]string{clusterv1.PausedAnnotation: ""}
	h.capi.Has(t, paused)
	if writes, wait, err := h.sync(); err != nil || len(writes) > 0 || wait != staleRetry {
		t.Errorf("wrote %q and waits %s, error %v", writes, wait, err)
	}
}
