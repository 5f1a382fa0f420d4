// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
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

// The MachinePool may have a name that is not valid as a label, and that differs from the
// pool's name.
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

	// The NstanceMachines were created by a former leader and by this leader, and deleted
	// before the next sync and before the event handler is called.
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
	// The list of a shard that is no longer configured is empty. The shard may be configured
	// again.
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
	for want := controller.StaleRetry; want < time.Second; want *= 2 {
		writes, requeue, err := h.sync()
		if err != nil || len(writes) > 0 || requeue != want {
			t.Errorf("wrote %q and waits %s, want %s, error %v", writes, requeue, want, err)
		}
	}
	h.expect("create nstancemachines i-2")
}

func TestForeignNstanceMachineHasOneEventAndIsNotChanged(t *testing.T) {
	const event = "Warning NameTaken instances get no NstanceMachine, because there is one of their name that is not of this pool: "
	other := newPool("a")
	other.Name, other.UID = "other", "other"
	ofOther := newNstanceMachine(other, newMachinePool(), instance{"i-1", "a"})
	for name, c := range map[string]struct {
		existing *v1beta1.NstanceMachine
		inCache  bool
	}{
		"in the cache":                          {foreign(), true},
		"not in the cache yet":                  {foreign(), false},
		"of another pool":                       {ofOther, true},
		"of another pool, not in the cache yet": {ofOther, false},
	} {
		t.Run(name, func(t *testing.T) {
			pool := newPool("a")
			objects := []runtime.Object{pool, newShardGroup(pool, "a")}
			h := newHarness(t, byShard{"a": running("i-1", "i-2")}, objects...)
			require.NoError(h.T, h.Tracker().Add(c.existing.DeepCopy()))
			before := h.nstanceMachine("i-1")
			var writes []string
			if c.inCache {
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

// In a pool of 500 instances on three shards, the change of an instance causes no more writes
// than in a small pool.
func TestWritesOfALargePool(t *testing.T) {
	const size = 500
	pool := newPool("a", "b", "c")
	groups := byShard{}
	ids := map[string][]string{}
	for i := range size {
		on := string(pool.Spec.Shards[i%3])
		ids[on] = append(ids[on], fmt.Sprintf("i-%03d", i))
	}
	objects := []runtime.Object{pool}
	for _, id := range pool.Spec.Shards {
		groups[string(id)] = running(ids[string(id)]...)
		objects = append(objects, newShardGroup(pool, id))
	}
	h := newHarness(t, groups, objects...)
	count := func(what string, want int) {
		t.Helper()
		h.show()
		writes, _, err := h.sync()
		if err != nil || len(writes) != want {
			t.Fatalf("%s costs %d writes, error %v, want %d", what, len(writes), err, want)
		}
	}
	count("a new pool", size)
	for _, all := range ids {
		for _, id := range all {
			h.addMachines(newMachine(id))
		}
	}
	count("nothing new", 0)

	h.setGroup("b", running(append(ids["b"], "i-new")...))
	count("one more instance", 1)
	h.addMachines(newMachine("i-new"))

	h.update("nstanceshardgroups", newShardGroup(pool, "c", ids["c"][7]))
	count("a selected instance", 1)
	count("waiting for it", 0)

	h.remove(ids["c"][7])
	count("a deleted one that is still listed", 0)
	h.setGroup("c", running(append(ids["c"][:7:7], ids["c"][8:]...)...))
	count("a deleted one", 0)

	h.update("nstancemachinepools", controllertest.Deleting(pool.DeepCopy()))
	count("a deleted pool", size)
	count("waiting for that", 0)
}

// crash stops the process at one of its writes: later requests are not carried out. The zero
// value never stops it.
type crash struct {
	// at is the number of the write, from 1. If late is set, it is carried out and the
	// response is lost.
	at   int
	late bool

	writes int
}

var errCrashed = errors.New("the process has stopped")

// write counts a write. If it returns an error, the response is lost; lost reports that the
// write is carried out nevertheless.
func (c *crash) write() (lost bool, err error) {
	c.writes++
	if c.at == 0 || c.writes < c.at {
		return false, nil
	}
	return c.late && c.writes == c.at, errCrashed
}

// Whichever write is the last of a process, the next process reaches the same result.
func TestCrashAtEachWrite(t *testing.T) {
	tests := map[string]struct {
		pool            *v1beta1.NstanceMachinePool
		nstanceMachines []string
		// deletingMachines and deletingNstanceMachines are being deleted at the end. writes is
		// the number of writes without a crash.
		deletingMachines, deletingNstanceMachines []string
		writes                                    int
	}{
		"a pool": {
			pool:             newPool("a", "b"),
			nstanceMachines:  []string{"i-1", "i-2", "i-3", "i-4"},
			deletingMachines: []string{"i-2", "i-9"},
			writes:           5,
		},
		"a pool in deletion": {
			pool:                    controllertest.Deleting(newPool("a", "b")),
			nstanceMachines:         []string{"i-2", "i-4"},
			deletingMachines:        []string{"i-2", "i-9"},
			deletingNstanceMachines: []string{"i-4"},
			writes:                  3,
		},
	}
	for name, test := range tests {
		for _, late := range []bool{false, true} {
			for at := range test.writes + 1 {
				t.Run(fmt.Sprintf("%s, write %d, late %t", name, at, late), func(t *testing.T) {
					pool := test.pool.DeepCopy()
					h := newHarness(t, byShard{"a": running("i-1", "i-2", "i-3"), "b": running("i-4")},
						pool, newShardGroup(pool, "a", "i-2"), newShardGroup(pool, "b"), stored("i-2"))
					if deleting(pool) {
						require.NoError(h.T, h.Tracker().Add(stored("i-4")))
						h.Put(h.Informers.MachinePools, controllertest.Deleting(newMachinePool()))
						h.restart()
					}
					h.addMachines(newMachine("i-2"), newMachine("i-9"))
					h.crash = crash{at: at, late: late}
					quiet, carriedOut := 0, 0
					for quiet < 4 {
						h.show()
						writes, _, err := h.sync()
						if err != nil && !strings.Contains(err.Error(), errCrashed.Error()) {
							t.Fatal(err)
						}
						quiet++
						if len(writes) > 0 {
							quiet = 0
						}
						if h.crash.at > 0 && h.crash.writes >= h.crash.at {
							carriedOut += h.crash.at - 1
							if late {
								carriedOut++
							}
							h.crash = crash{}
							h.restart()
							quiet = 0
						}
						h.FakeClock.SetTime(h.FakeClock.Now().Add(orphanGrace / 2))
					}
					carriedOut += h.crash.writes

					// The next process sees all writes that were carried out, even if their
					// response was lost: nothing is done twice.
					if carriedOut != test.writes {
						t.Errorf("%d writes were carried out, want %d", carriedOut, test.writes)
					}
					list, err := h.InfrastructureV1beta1().NstanceMachines(controllertest.Namespace).List(t.Context(), metav1.ListOptions{})
					require.NoError(h.T, err)
					var nstanceMachines, deletingNstanceMachines, deletingMachines []string
					for _, nstanceMachine := range list.Items {
						nstanceMachines = append(nstanceMachines, nstanceMachine.Name)
						if deleting(&nstanceMachine) {
							deletingNstanceMachines = append(deletingNstanceMachines, nstanceMachine.Name)
						}
					}
					for _, id := range slices.Sorted(maps.Keys(h.machines)) {
						if deleting(h.machines[id]) {
							deletingMachines = append(deletingMachines, id)
						}
					}
					slices.Sort(nstanceMachines)
					if !slices.Equal(nstanceMachines, test.nstanceMachines) || !slices.Equal(deletingNstanceMachines, test.deletingNstanceMachines) || !slices.Equal(deletingMachines, test.deletingMachines) {
						t.Errorf("NstanceMachines %v, of which %v are being deleted; Machines that are being deleted: %v", nstanceMachines, deletingNstanceMachines, deletingMachines)
					}
					// A process that is killed before the response to a deletion records no event.
					recorded := h.Events()
					for _, event := range recorded {
						assert.Contains(t, event, "Normal DeletingMachine ")
					}
					assert.Contains(t, []int{len(deletingMachines), len(deletingMachines) - 1}, len(recorded), "events: %q", recorded)
				})
			}
		}
	}
}

// A new process does not know since when a Machine is an orphan.
func TestOrphanGraceRestartsAfterACrash(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, byShard{"a": running()}, pool, newShardGroup(pool, "a"))
	h.addMachines(newMachine("i-1"))
	h.expect()
	h.FakeClock.SetTime(start.Add(orphanGrace - time.Second))
	h.restart()
	h.expect()
	h.FakeClock.SetTime(start.Add(orphanGrace))
	h.expect()
	h.FakeClock.SetTime(start.Add(2*orphanGrace - time.Second))
	h.expect("delete machines i-1")
}
