// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmachine

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/shard"
)

func TestAMemberIsWhatClusterAPILooksFor(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, shards{"a": lists("knd01")}, pool, newShardGroup(pool, "a"))
	h.expect("create nstancemachines knd01")

	member := h.member("knd01")
	labels := map[string]string{
		"cluster.x-k8s.io/cluster-name": clusterName,
		"cluster.x-k8s.io/pool-name":    "workers",
		"nstance.dev/group":             "workers",
		"nstance.dev/shard":             "a",
	}
	if !maps.Equal(member.Labels, labels) {
		t.Errorf("the labels are %v", member.Labels)
	}
	owners := []metav1.OwnerReference{{APIVersion: "infrastructure.cluster.x-k8s.io/v1beta1", Kind: "NstanceMachinePool", Name: "workers", UID: poolUID}}
	if !slices.Equal(member.OwnerReferences, owners) {
		t.Errorf("the owners are %v, want one that is no controller", member.OwnerReferences)
	}
	if !slices.Equal(member.Finalizers, []string{v1beta1.FinalizerMachine}) {
		t.Errorf("the finalizers are %v", member.Finalizers)
	}
	if member.Spec.GroupRef.Name != "workers" || member.Spec.Shard != "a" || member.Spec.ProviderID != "" {
		t.Errorf("the spec is %+v", member.Spec)
	}
}

// The MachinePool may have a name that is no label, and another one than the pool.
func TestAMemberIsLabelledAsItsMachinePoolIs(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, shards{"a": lists("i-1")}, pool, newShardGroup(pool, "a"))
	machinePool := newMachinePool()
	machinePool.Name = strings.Repeat("long-", 20) + "name"
	h.noError(h.machinePoolCache.GetIndexer().Replace([]any{machinePool}, "1"))
	h.expect("create nstancemachines i-1")
	if got := h.member("i-1").Labels[clusterv1.MachinePoolNameLabel]; got != capi.LabelValue(machinePool.Name) || got == machinePool.Name {
		t.Errorf("the label is %q", got)
	}
}

func TestWhichInstancesGetAMember(t *testing.T) {
	pool := newPool("a", "b")
	deleting := lists("i-1")
	deleting.Deleting = true
	otherPools := newShardGroup(pool, "a")
	otherPools.OwnerReferences[0].UID = "uid-other"
	tests := map[string]struct {
		shards Groups
		group  *v1beta1.NstanceShardGroup
		want   []string
	}{
		"pending":                          {shards{"a": as("i-1", shard.InstancePending)}, nil, []string{"create nstancemachines i-1"}},
		"failed":                           {shards{"a": as("i-1", shard.InstanceFailed)}, nil, []string{"create nstancemachines i-1"}},
		"of a state that is not known yet": {shards{"a": as("i-1", "hibernating")}, nil, []string{"create nstancemachines i-1"}},
		"terminating":                      {shards{"a": as("i-1", shard.InstanceTerminating)}, nil, nil},
		"terminated":                       {shards{"a": as("i-1", shard.InstanceTerminated)}, nil, nil},
		"of a group that goes":             {shards{"a": deleting}, nil, nil},
		"of a shard group that goes":       {shards{"a": lists("i-1")}, deleted(newShardGroup(pool, "a")), nil},
		"of another pool":                  {shards{"a": lists("i-1")}, otherPools, nil},
		"of a shard the pool has left":     {shards{"c": lists("i-1")}, newShardGroup(pool, "c"), nil},
		"of a shard that is not known":     {shards{}, nil, nil},
		"of a shard being read":            {unread{shards{"a": lists("i-1")}}, nil, nil},
		"of two shards":                    {shards{"a": lists("i-1"), "b": lists("i-2")}, nil, []string{"create nstancemachines i-1", "create nstancemachines i-2"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			group := test.group
			if group == nil {
				group = newShardGroup(pool, "a")
			}
			h := newHarness(t, test.shards, pool.DeepCopy(), group, newShardGroup(pool, "b"))
			h.expect(test.want...)
		})
	}
}

// A cluster, a pool or a MachinePool that is paused keeps everything as it is.
func TestNothingIsWrittenWhilePaused(t *testing.T) {
	group := newShardGroup(newPool("a"), "a", "i-2")
	for name, pause := range map[string]func(*harness){
		"the Cluster": func(h *harness) {
			h.put(h.clusterCache, pausedCluster())
		},
		"the pool":        func(h *harness) { h.update("nstancemachinepools", paused(newPool("a"))) },
		"the MachinePool": func(h *harness) { h.put(h.machinePoolCache, paused(newMachinePool())) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, shards{"a": lists("i-1", "i-2")}, newPool("a"), group.DeepCopy(), stored("i-2"))
			h.addMachines(newMachine("i-2"), newMachine("i-3"))
			pause(h)
			h.expect()
			h.clock.SetTime(start.Add(orphanGrace))
			h.expect()
		})
	}
}

func TestAPoolThatIsGoneNeedsNothing(t *testing.T) {
	h := newHarness(t, shards{"a": lists("i-1")})
	h.expect()
}

// The instance has ended, and its shard will say so in a moment.
func TestAMemberThatHasGoneIsNotMadeAgain(t *testing.T) {
	pool := newPool("a")
	groups := shards{"a": lists("i-1", "i-2")}
	h := newHarness(t, groups, pool, newShardGroup(pool, "a"), stored("i-1"))
	h.expect("create nstancemachines i-2")
	h.show()

	// Made by a former leader and by this one, gone before the next sync or with the
	// handler still to be told.
	h.drop("i-1")
	h.drop("i-2")
	h.noError(h.informers.NstanceMachines().Informer().GetIndexer().Replace(nil, "2000"))
	if writes, _, err := h.sync(); err != nil || len(writes) > 0 {
		t.Errorf("wrote %q, error %v", writes, err)
	}
	h.expect()
	if got := h.controller.memories.get(poolUID).had; len(got) != 2 {
		t.Errorf("remembered %v", got)
	}

	groups["a"] = lists("i-3")
	h.expect("create nstancemachines i-3")
	if got := h.controller.memories.get(poolUID).had; !maps.Equal(got, map[string]string{"i-3": "a"}) {
		t.Errorf("remembered %v", got)
	}
}

func TestAMemberThatHasGoneIsForgottenWithItsInstance(t *testing.T) {
	pool := newPool("a")
	groups := shards{"a": lists("i-1")}
	h := newHarness(t, groups, pool, newShardGroup(pool, "a"), stored("i-1"))
	// A shard that is not configured any more lists nothing. It may come back.
	delete(groups, "a")
	h.expect()
	if got := h.controller.memories.get(poolUID).had; len(got) != 1 {
		t.Errorf("remembered %v", got)
	}
	groups["a"] = lists()
	h.drop("i-1")
	h.show()
	if len(h.controller.memories.of) != 0 {
		t.Errorf("remembered %v", h.controller.memories.of)
	}
}

func TestASyncWaitsUntilTheCacheShowsWhatItMade(t *testing.T) {
	pool := newPool("a")
	groups := shards{"a": lists("i-1")}
	h := newHarness(t, groups, pool, newShardGroup(pool, "a"))
	h.expect("create nstancemachines i-1")
	groups["a"] = lists("i-1", "i-2")
	writes, requeue, err := h.sync()
	if err != nil || len(writes) > 0 || requeue != staleRetry {
		t.Errorf("wrote %q and waits %s, error %v", writes, requeue, err)
	}
	h.expect("create nstancemachines i-2")
}

func TestAStrangerIsToldOfOnceAndNeverTouched(t *testing.T) {
	const event = "Warning NameTaken instances get no NstanceMachine, because there is one of their name that is not of this pool: "
	for name, inCache := range map[string]bool{"in the cache": true, "not in the cache yet": false} {
		t.Run(name, func(t *testing.T) {
			pool := newPool("a")
			objects := []runtime.Object{pool, newShardGroup(pool, "a")}
			h := newHarness(t, shards{"a": lists("i-1", "i-2")}, objects...)
			h.noError(h.Tracker().Add(stranger()))
			before := h.member("i-1")
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
			h.expectEvents(event + "i-1")
			h.expect()
			h.expectEvents()
			if after := h.member("i-1"); after.ResourceVersion != before.ResourceVersion {
				t.Errorf("it is %+v now", after)
			}
		})
	}
}

func TestOneThatCannotBeMadeHoldsUpNoOther(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, shards{"a": lists("i-1", "i-2", "i-3")}, pool, newShardGroup(pool, "a"))
	h.refused["i-1"] = errors.New("no room")
	h.refused["i-2"] = errors.New("no room")
	h.show()
	writes, _, err := h.sync()
	if err == nil || err.Error() != "create NstanceMachine default/i-1: no room; so did 1 more" {
		t.Errorf("got error %v", err)
	}
	if want := []string{"create nstancemachines i-1", "create nstancemachines i-2", "create nstancemachines i-3"}; !slices.Equal(writes, want) {
		t.Errorf("wrote %q, want %q", writes, want)
	}
	clear(h.refused)
	h.expect("create nstancemachines i-1", "create nstancemachines i-2")
}
