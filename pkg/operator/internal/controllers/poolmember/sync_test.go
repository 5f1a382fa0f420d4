// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

func TestNstanceMachineHasWhatClusterAPIReads(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, byShard{"a": running("knd01")}, pool, newShardGroup(pool, "a"))
	h.expect("create nstancemachines knd01")

	nstanceMachine := h.nstanceMachine("knd01")
	labels := map[string]string{
		"cluster.x-k8s.io/cluster-name": controllertest.ClusterName,
		"cluster.x-k8s.io/pool-name":    "workers",
		"nstance.dev/group":             "workers",
		"nstance.dev/shard":             "a",
	}
	if !maps.Equal(nstanceMachine.Labels, labels) {
		t.Errorf("the labels are %v", nstanceMachine.Labels)
	}
	owners := []metav1.OwnerReference{{APIVersion: "infrastructure.cluster.x-k8s.io/v1beta1", Kind: "NstanceMachinePool", Name: "workers", UID: poolUID}}
	if !slices.Equal(nstanceMachine.OwnerReferences, owners) {
		t.Errorf("the owners are %v, want one that is not the controller", nstanceMachine.OwnerReferences)
	}
	if !slices.Equal(nstanceMachine.Finalizers, []string{v1beta1.FinalizerMachine}) {
		t.Errorf("the finalizers are %v", nstanceMachine.Finalizers)
	}
	if nstanceMachine.Spec.GroupRef.Name != "workers" || nstanceMachine.Spec.Shard != "a" || nstanceMachine.Spec.ProviderID != "" {
		t.Errorf("the spec is %+v", nstanceMachine.Spec)
	}
}

// The MachinePool may have a name that is not valid as a label, and another one than
// the pool.
func TestNstanceMachineHasTheLabelOfItsMachinePool(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, byShard{"a": running("i-1")}, pool, newShardGroup(pool, "a"))
	machinePool := newMachinePool()
	machinePool.Name = strings.Repeat("long-", 20) + "name"
	require.NoError(h.T, h.Informers.MachinePools.GetIndexer().Replace([]any{machinePool}, "1"))
	h.expect("create nstancemachines i-1")
	if got := h.nstanceMachine("i-1").Labels[clusterv1.MachinePoolNameLabel]; got != capi.LabelValue(machinePool.Name) || got == machinePool.Name {
		t.Errorf("the label is %q", got)
	}
}

func TestWhichInstancesGetAnNstanceMachine(t *testing.T) {
	pool := newPool("a", "b")
	deleting := running("i-1")
	deleting.Deleting = true
	otherPools := newShardGroup(pool, "a")
	otherPools.OwnerReferences[0].UID = "uid-other"
	tests := map[string]struct {
		shards   byShard
		group    *v1beta1.NstanceShardGroup
		unsynced bool
		want     []string
	}{
		"pending":                                {shards: byShard{"a": inState("i-1", shard.InstancePending)}, want: []string{"create nstancemachines i-1"}},
		"failed":                                 {shards: byShard{"a": inState("i-1", shard.InstanceFailed)}, want: []string{"create nstancemachines i-1"}},
		"of a state that is not known yet":       {shards: byShard{"a": inState("i-1", "hibernating")}, want: []string{"create nstancemachines i-1"}},
		"terminating":                            {shards: byShard{"a": inState("i-1", shard.InstanceTerminating)}},
		"terminated":                             {shards: byShard{"a": inState("i-1", shard.InstanceTerminated)}},
		"of a group in deletion":                 {shards: byShard{"a": deleting}},
		"of a shard group in deletion":           {shards: byShard{"a": running("i-1")}, group: controllertest.Deleting(newShardGroup(pool, "a"))},
		"of another pool":                        {shards: byShard{"a": running("i-1")}, group: otherPools},
		"of a shard that the pool does not name": {shards: byShard{"c": running("i-1")}, group: newShardGroup(pool, "c")},
		"of an unknown shard":                    {shards: byShard{}},
		"of a shard that is not synced":          {shards: byShard{"a": running("i-1")}, unsynced: true},
		"of two shards":                          {shards: byShard{"a": running("i-1"), "b": running("i-2")}, want: []string{"create nstancemachines i-1", "create nstancemachines i-2"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			group := test.group
			if group == nil {
				group = newShardGroup(pool, "a")
			}
			h := newHarness(t, test.shards, pool.DeepCopy(), group, newShardGroup(pool, "b"))
			if test.unsynced {
				h.Fake.ByID["a"].Synced = false
			}
			h.expect(test.want...)
		})
	}
}

// A paused Cluster, pool or MachinePool stops all writes.
func TestNothingIsWrittenWhilePaused(t *testing.T) {
	group := newShardGroup(newPool("a"), "a", "i-2")
	for name, pause := range map[string]func(*harness){
		"the Cluster": func(h *harness) {
			h.Put(h.Informers.Clusters, controllertest.PausedCluster(controllertest.NewCluster()))
		},
		"the pool":        func(h *harness) { h.update("nstancemachinepools", controllertest.Paused(newPool("a"))) },
		"the MachinePool": func(h *harness) { h.Put(h.Informers.MachinePools, controllertest.Paused(newMachinePool())) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, byShard{"a": running("i-1", "i-2")}, newPool("a"), group.DeepCopy(), stored("i-2"))
			h.addMachines(newMachine("i-2"), newMachine("i-3"))
			pause(h)
			h.expect()
			h.FakeClock.SetTime(start.Add(orphanGrace))
			h.expect()
		})
	}
}

func TestDeletedPoolWritesNothing(t *testing.T) {
	h := newHarness(t, byShard{"a": running("i-1")})
	h.expect()
}

// The instance was terminated, and its shard reports that later.
func TestDeletedNstanceMachineIsNotCreatedAgain(t *testing.T) {
	pool := newPool("a")
	groups := byShard{"a": running("i-1", "i-2")}
	h := newHarness(t, groups, pool, newShardGroup(pool, "a"), stored("i-1"))
	h.expect("create nstancemachines i-2")
	h.show()

	// Created by a former leader and by this one, deleted before the next sync and before
	// the event handler is called.
	h.remove("i-1")
	h.remove("i-2")
	require.NoError(h.T, h.Informers.Nstance.NstanceMachines().Informer().GetIndexer().Replace(nil, "2000"))
	if writes, _, err := h.sync(); err != nil || len(writes) > 0 {
		t.Errorf("wrote %q, error %v", writes, err)
	}
	h.expect()
	if got := h.controller.states.get(poolUID).shardOf; len(got) != 2 {
		t.Errorf("state has %v", got)
	}

	h.setGroup("a", running("i-3"))
	h.expect("create nstancemachines i-3")
	if got := h.controller.states.get(poolUID).shardOf; !maps.Equal(got, map[string]string{"i-3": "a"}) {
		t.Errorf("state has %v", got)
	}
}

func TestDeletedNstanceMachineIsDroppedWithItsInstance(t *testing.T) {
	pool := newPool("a")
	groups := byShard{"a": running("i-1")}
	h := newHarness(t, groups, pool, newShardGroup(pool, "a"), stored("i-1"))
	// A shard that is no longer configured lists nothing. It may be configured again.
	delete(h.Fake.ByID, "a")
	h.expect()
	if got := h.controller.states.get(poolUID).shardOf; len(got) != 1 {
		t.Errorf("state has %v", got)
	}
	h.setGroup("a", running())
	h.remove("i-1")
	h.show()
	if len(h.controller.states.byPool) != 0 {
		t.Errorf("state has %v", h.controller.states.byPool)
	}
}

func TestSyncWaitsForTheCacheOfItsWrites(t *testing.T) {
	pool := newPool("a")
	groups := byShard{"a": running("i-1")}
	h := newHarness(t, groups, pool, newShardGroup(pool, "a"))
	h.expect("create nstancemachines i-1")
	h.setGroup("a", running("i-1", "i-2"))
	writes, requeue, err := h.sync()
	if err != nil || len(writes) > 0 || requeue != controller.StaleRetry {
		t.Errorf("wrote %q and waits %s, error %v", writes, requeue, err)
	}
	h.expect("create nstancemachines i-2")
}

func TestForeignNstanceMachineHasOneEventAndIsNotChanged(t *testing.T) {
	const event = "Warning NameTaken instances get no NstanceMachine, because there is one of their name that is not of this pool: "
	for name, inCache := range map[string]bool{"in the cache": true, "not in the cache yet": false} {
		t.Run(name, func(t *testing.T) {
			pool := newPool("a")
			objects := []runtime.Object{pool, newShardGroup(pool, "a")}
			h := newHarness(t, byShard{"a": running("i-1", "i-2")}, objects...)
			require.NoError(h.T, h.Tracker().Add(foreign()))
			before := h.nstanceMachine("i-1")
			var writes []string
			if inCache {
				h.show()
			} else {
				writes = append(writes, "create nstancemachines i-1")
			}
			got, _, err := h.sync()
			if writes = append(writes, "create nstancemachines i-2"); err != nil || !slices.Equal(got, writes) {
				t.Errorf("wrote %q, error %v, want %q", got, err, writes)
			}
			h.ExpectEvents(event + "i-1")
			h.expect()
			h.ExpectEvents()
			if after := h.nstanceMachine("i-1"); after.ResourceVersion != before.ResourceVersion {
				t.Errorf("it is %+v now", after)
			}
		})
	}
}

func TestFailedCreationDoesNotBlockOthers(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, byShard{"a": running("i-1", "i-2", "i-3")}, pool, newShardGroup(pool, "a"))
	h.rejected["i-1"] = errors.New("no room")
	h.rejected["i-2"] = errors.New("no room")
	h.show()
	writes, _, err := h.sync()
	if err == nil || err.Error() != "create NstanceMachine default/i-1: no room; so did 1 more" {
		t.Errorf("got error %v", err)
	}
	if want := []string{"create nstancemachines i-1", "create nstancemachines i-2", "create nstancemachines i-3"}; !slices.Equal(writes, want) {
		t.Errorf("wrote %q, want %q", writes, want)
	}
	clear(h.rejected)
	h.expect("create nstancemachines i-1", "create nstancemachines i-2")
}
