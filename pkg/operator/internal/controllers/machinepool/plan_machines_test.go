// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

// listed returns the group "workers" as a server reports it that lists its instances.
func listed(ids ...string) *shard.Group {
	group := &shard.Group{Key: "workers", ListsInstances: true, Size: int32(len(ids))}
	for _, id := range ids {
		group.Instances = append(group.Instances, shard.Instance{ID: id, State: shard.InstanceRunning})
	}
	return group
}

func TestPlanMachines(t *testing.T) {
	annotate := func(names ...string) func(*observation) {
		return func(seen *observation) {
			seen.machinePools[0].Annotations = map[string]string{}
			for _, name := range names {
				seen.machinePools[0].Annotations[name] = "3"
			}
		}
	}
	mode := func(mode v1beta1.MachineMode) func(*observation) {
		return func(seen *observation) { seen.pool.Spec.MachineMode = mode }
	}
	on := func(seen *observation) { seen.pool.Status.InfrastructureMachineKind = v1beta1.MachineKind }
	reported := func(at int, group *shard.Group) func(*observation) {
		return func(seen *observation) { seen.shards[at].reported = group }
	}
	unsynced := func(seen *observation) { seen.shards[1].synced = false }

	for name, test := range map[string]struct {
		change []func(*observation)
		on     bool
		status metav1.ConditionStatus
		reason string
		words  string
	}{
		"disabled by default": {
			nil, false, "", "", "",
		},
		"the autoscaler scales the pool": {
			[]func(*observation){annotate(clusterv1.AutoscalerMinSizeAnnotation, clusterv1.AutoscalerMaxSizeAnnotation)},
			true, metav1.ConditionTrue, v1beta1.ReasonMachinesEnabled, "",
		},
		"one annotation is not enough": {
			[]func(*observation){annotate(clusterv1.AutoscalerMaxSizeAnnotation)},
			false, "", "", "",
		},
		"always": {
			[]func(*observation){mode(v1beta1.MachineModeAlways)}, true, metav1.ConditionTrue, v1beta1.ReasonMachinesEnabled, "",
		},
		"never, in spite of the annotations": {
			[]func(*observation){mode(v1beta1.MachineModeNever), annotate(clusterv1.AutoscalerMinSizeAnnotation, clusterv1.AutoscalerMaxSizeAnnotation)},
			false, "", "", "",
		},
		"switched off": {
			[]func(*observation){mode(v1beta1.MachineModeNever), on}, false, "", "", "",
		},
		"a server that lists no instances": {
			[]func(*observation){mode(v1beta1.MachineModeAlways), reported(1, &shard.Group{})},
			false, metav1.ConditionFalse, v1beta1.ReasonUnsupportedByServer, "shards do not list their instances: a",
		},
		"a server that no longer lists instances disables nothing": {
			[]func(*observation){mode(v1beta1.MachineModeAlways), on, reported(1, &shard.Group{})},
			true, metav1.ConditionFalse, v1beta1.ReasonUnsupportedByServer, "a",
		},
		"a shard that has not been read": {
			[]func(*observation){mode(v1beta1.MachineModeAlways), unsynced},
			false, metav1.ConditionFalse, v1beta1.ReasonNotSynced, "a",
		},
		"a shard that does not have the group yet": {
			[]func(*observation){mode(v1beta1.MachineModeAlways), reported(0, nil)},
			false, metav1.ConditionFalse, v1beta1.ReasonNotSynced, "b",
		},
		"a shard that is not synced disables nothing": {
			[]func(*observation){mode(v1beta1.MachineModeAlways), on, unsynced}, true, "", "", "",
		},
		"no MachinePool disables nothing": {
			[]func(*observation){on, func(seen *observation) { seen.machinePools = nil }}, true, "", "", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			seen := observed(newPool("b", "a"), 2)
			for i := range seen.shards {
				seen.shards[i].reported = listed()
			}
			for _, change := range test.change {
				change(&seen)
			}
			got := planMachines(seen, machinesMode{on: hasMachines(seen)})
			if unwanted := !test.on && test.status == ""; got.unwanted != unwanted || got.on != test.on || got.status != test.status || got.reason != test.reason || !strings.Contains(got.message, test.words) {
				t.Errorf("got %+v, want on %t, %s for %s with %q", got, test.on, test.status, test.reason, test.words)
			}
		})
	}
}

// A pool reports the capacity of its Nodes once no connected shard can change it, and has
// Machines once all its servers list their instances; nothing is written twice.
func TestSyncEnablesMachinesAndReportsCapacity(t *testing.T) {
	pool := newPool("a", "b")
	shape := &shard.NodeShape{Architecture: "arm64", OperatingSystem: "linux", Capacity: map[string]string{"cpu": "2", "memory": "8Gi"}}
	groupOnA := listed()
	groupOnA.Shape = shape
	h := newHarness(t, withGroups(map[string]*shard.Group{"a": groupOnA, "b": nil}), pool, ready(newShardGroup(pool, "a", 0)), ready(newShardGroup(pool, "b", 0)))
	h.scale(0)
	object, _, err := h.Informers.MachinePools.GetIndexer().GetByKey(controllertest.Namespace + "/workers")
	require.NoError(t, err)
	object.(*clusterv1.MachinePool).Annotations = map[string]string{
		clusterv1.AutoscalerMinSizeAnnotation: "0", clusterv1.AutoscalerMaxSizeAnnotation: "9",
	}
	h.expect(poolStatus)
	h.Show()
	if status := h.pool().Status; status.Capacity != nil {
		t.Errorf("before shard b has the group the status is %+v", status)
	}
	h.Fake.ByID["b"].Reachable = false
	h.expect(poolStatus)
	h.Show()
	status := h.pool().Status
	if status.InfrastructureMachineKind != "" || !status.Capacity.Memory().Equal(resource.MustParse("8Gi")) ||
		status.NodeInfo != (v1beta1.NodeInfo{Architecture: "arm64", OperatingSystem: "linux"}) {
		t.Errorf("status is %+v", status)
	}
	h.expect()

	h.Fake.ByID["b"].Reachable = true
	h.Fake.SetGroup("b", *listed())
	h.expect(poolStatus)
	h.Show()
	if status := h.pool().Status; status.InfrastructureMachineKind != v1beta1.MachineKind ||
		!meta.IsStatusConditionTrue(status.Conditions, v1beta1.ConditionMachinesEnabled) {
		t.Errorf("status is %+v", status)
	}
	h.expect()

	// The capacity stays when no shard reports it any more.
	h.Fake.SetGroup("a", *listed())
	h.expect()
}

// The capacity stays while a shard cannot be read, because that shard may have less.
func TestCapacityStaysWhileAShardIsUnreachable(t *testing.T) {
	pool := newPool("a", "b")
	groupOnA, groupOnB := listed(), listed()
	groupOnA.Shape = &shard.NodeShape{Capacity: map[string]string{"cpu": "4"}, Labels: shard.LabelsOf(map[string]string{"zone": "a"})}
	groupOnB.Shape = &shard.NodeShape{Capacity: map[string]string{"cpu": "2"}, Labels: shard.LabelsOf(map[string]string{"zone": "b"}),
		Taints: []shard.Taint{{Key: "dedicated", Value: "x", Effect: "NoSchedule"}}}
	h := newHarness(t, withGroups(map[string]*shard.Group{"a": groupOnA, "b": groupOnB}), pool, ready(newShardGroup(pool, "a", 0)), ready(newShardGroup(pool, "b", 0)))
	h.scale(0)
	h.expect(poolStatus)
	h.Show()
	if got := h.pool().Status.Capacity.Cpu().String(); got != "2" {
		t.Fatalf("cpu is %s", got)
	}
	delete(h.Fake.ByID["b"].Groups, "workers")
	h.expect()
	if got := h.pool().Status.Capacity.Cpu().String(); got != "2" {
		t.Errorf("cpu became %s", got)
	}
}

// While a shard group could not be written, its pool keeps its Machines: without the
// note on every shard group the next sync would move instances.
func TestFailedWriteDoesNotDisableMachines(t *testing.T) {
	h := newPoolWithMachines(t, map[string][]string{"a": {"a1"}, "b": {"b1", "b2", "b3"}, "c": nil}, nil)
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { pool.Spec.MachineMode = v1beta1.MachineModeNever })
	h.scale(4)
	rejected := true
	h.PrependReactor("patch", "nstanceshardgroups", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if rejected && action.(clienttesting.PatchAction).GetName() == "workers--b" {
			return true, nil, errors.New("rejected")
		}
		return false, nil, nil
	})
	if _, _, err := h.sync(); err == nil {
		t.Error("no error")
	}
	h.Show()
	if kind := h.pool().Status.InfrastructureMachineKind; kind != v1beta1.MachineKind {
		t.Errorf("the kind of its Machines became %q", kind)
	}
	rejected = false
	for range 3 {
		_, _, err := h.sync()
		require.NoError(t, err)
		h.Show()
	}
	h.expectSizes(map[string]int32{"a": 1, "b": 3, "c": 0})
}

// The size of the group on a new shard of the pool stays, and is not known before the
// shard is synced.
func TestNewUnsyncedShardGetsNoSize(t *testing.T) {
	pool := newPool("a", "b")
	pool.Spec.MachineMode, pool.Status.InfrastructureMachineKind = v1beta1.MachineModeAlways, v1beta1.MachineKind
	seen := observed(pool, 2, newShardGroup(pool, "a", 2))
	seen.shards[1].synced = false
	if d := planOf(seen); len(d.apply) > 0 {
		t.Errorf("writes %+v", d.apply)
	}
	seen.shards[1].synced, seen.shards[1].size = true, 1
	if d := planOf(seen); len(d.apply) != 2 || d.apply[0].spec.Size != 1 || d.apply[1].spec.Size != 1 {
		t.Errorf("writes %+v when it is read, want size 1 on both", d.apply)
	}
}
