// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

const (
	deleteA               = "delete nstanceshardgroups workers--a"
	deleteB               = "delete nstanceshardgroups workers--b"
	removeFinalizerOfPool = "patch nstancemachinepools workers"
)

func deletingPool(shards ...v1beta1.Identifier) *v1beta1.NstanceMachinePool {
	pool := newPool(shards...)
	pool.DeletionTimestamp = ptr.To(metav1.Now())
	return pool
}

func TestSyncAddsTheFinalizerFirst(t *testing.T) {
	pool := newPool("a")
	pool.Finalizers = []string{"example.com/other"}
	h := newHarness(t, withSizes(map[string]int32{"a": 0}), pool)
	h.scale(2)
	rejected := errors.New("rejected")
	h.Fail(poolSpec, rejected)
	if writes, _, err := h.sync(); !errors.Is(err, rejected) || !slices.Equal(writes, []string{poolSpec}) {
		t.Errorf("wrote %q without the finalizer, error %v", writes, err)
	}
	h.Fail(poolSpec, nil)
	h.expect(poolSpec, groupA)
	if got := h.pool().Finalizers; !slices.Contains(got, v1beta1.FinalizerMachinePool) || !slices.Contains(got, "example.com/other") {
		t.Errorf("the finalizers are %q", got)
	}
	// Writing the provider ids keeps it: both have the same field manager.
	h.report("a", func(g *v1beta1.NstanceShardGroup) { ready(g, "i-1", "i-2") })
	h.expect(poolSpec, poolStatus)
	if got := h.pool(); !slices.Contains(got.Finalizers, v1beta1.FinalizerMachinePool) || len(got.Spec.ProviderIDList) != 2 {
		t.Errorf("the finalizers are %q, the ids %q", got.Finalizers, got.Spec.ProviderIDList)
	}
}

// Cluster API deletes the pool of a deleted MachinePool, also if another one refers to it too.
// The instances of the other one stay, and so does the other one.
func TestDeletionOfASurplusMachinePoolKeepsTheInstances(t *testing.T) {
	pool := deletingPool("a", "b")
	pool.Spec.ProviderIDList = []string{"i-1", "i-2"}
	h := newHarness(t, withSizes(map[string]int32{"a": 1, "b": 1}), pool, ready(newShardGroup(pool, "a", 1), "i-1"), ready(newShardGroup(pool, "b", 1), "i-2"))
	surplus := machinePool("prod-workers", ptr.To[int32](2))
	surplus.DeletionTimestamp = ptr.To(metav1.Now())
	h.scale(2)
	h.Put(h.Informers.MachinePools, surplus)
	h.expect(removeFinalizerOfPool) // the same request, with the policy
	assert.Equal(t, v1beta1.DeletionRetain, h.pool().Spec.DeletionPolicy)
	for range 6 {
		h.Show()
		_, _, err := h.sync()
		require.NoError(t, err)
	}
	assert.Empty(t, h.CAPI.Changed, "deleted")
	for _, id := range []string{"a", "b"} {
		group := h.shardGroup(id)
		assert.Equal(t, v1beta1.DeletionRetain, group.Spec.DeletionPolicy)
		assert.Equal(t, int32(1), group.Spec.Size)
	}
	assert.Equal(t, []string{"i-1", "i-2"}, h.pool().Spec.ProviderIDList)
}

// The garbage collector deletes a pool whose MachinePool vanished. Nobody has said that its instances
// are to be terminated.
func TestDeletionWithoutTheMachinePoolKeepsTheInstances(t *testing.T) {
	owner := machinePool("workers", ptr.To[int32](1))
	with := func(change func(*clusterv1.MachinePool)) *clusterv1.MachinePool {
		changed := owner.DeepCopy()
		change(changed)
		return changed
	}
	for name, test := range map[string]struct {
		// live is the MachinePool on the API server, and cached in the cache.
		live, cached *clusterv1.MachinePool
		change       func(*v1beta1.NstanceMachinePool, *v1beta1.NstanceShardGroup)
		want         []string
	}{
		"it does not exist": {want: []string{removeFinalizerOfPool}}, // the same request, with the policy
		"another one has its name": {live: with(func(m *clusterv1.MachinePool) {
			m.UID, m.Spec.Template.Spec.InfrastructureRef.Name = "uid-other", "other"
		}), want: []string{removeFinalizerOfPool}},
		"it refers to another pool": {live: with(func(m *clusterv1.MachinePool) {
			m.Spec.Template.Spec.InfrastructureRef.Name = "other"
		}), want: []string{poolStatus, deleteA}},
		"the cache lacks it":                      {live: owner},
		"only the cache has it":                   {cached: owner, want: []string{removeFinalizerOfPool}},
		"only the cache has it, and its deletion": {cached: controllertest.Deleting(owner.DeepCopy()), want: []string{removeFinalizerOfPool}},
		"it is deleted":                           {live: owner, cached: controllertest.Deleting(owner.DeepCopy()), want: []string{poolStatus, deleteA}},
		"it was created again":                    {live: with(func(m *clusterv1.MachinePool) { m.UID = "uid-new" }), want: []string{removeFinalizerOfPool}},
		"the pool never had one": {change: func(pool *v1beta1.NstanceMachinePool, _ *v1beta1.NstanceShardGroup) {
			pool.OwnerReferences = nil
		}, want: []string{poolStatus, deleteA}},
		"the deletion has begun": {change: func(_ *v1beta1.NstanceMachinePool, group *v1beta1.NstanceShardGroup) {
			group.DeletionTimestamp = ptr.To(metav1.Now())
		}, want: []string{poolStatus}},
	} {
		t.Run(name, func(t *testing.T) {
			pool := deletingPool("a")
			pool.Spec.ProviderIDList = []string{"i-1"}
			pool.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, clusterv1.GroupVersion.WithKind("MachinePool"))}
			group := ready(newShardGroup(pool, "a", 1), "i-1")
			if test.change != nil {
				test.change(pool, group)
			}
			h := newHarness(t, withSizes(map[string]int32{"a": 1}), pool, group)
			if test.cached != nil {
				h.Put(h.Informers.MachinePools, test.cached)
			}
			if test.live != nil {
				h.CAPI.Show(t, test.live)
			}
			h.expect(test.want...)
			retained := slices.Contains(test.want, removeFinalizerOfPool)
			assert.Equal(t, retained, h.pool().Spec.DeletionPolicy == v1beta1.DeletionRetain)
			if retained {
				h.ExpectEvents("Warning NoMachinePool the pool is deleted because its MachinePool vanished, its instances are kept; to terminate them, delete the pool that imports them")
			}
		})
	}
}

// TestMayBeOrphaned: the API server is asked for the MachinePool only if the answer can change what the
// deletion does. With the Cluster all MachinePools vanish, and the instances are to be terminated.
func TestMayBeOrphaned(t *testing.T) {
	owned := func() observation {
		pool := deletingPool("a")
		pool.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool", Name: "workers", UID: "uid", Controller: ptr.To(true),
		}}
		return observation{pool: pool, shardGroups: []*v1beta1.NstanceShardGroup{newShardGroup(pool, "a", 1)}}
	}
	assert.True(t, mayBeOrphaned(owned()))
	for name, change := range map[string]func(*observation){
		"no deletion":                   func(o *observation) { o.pool.DeletionTimestamp = nil },
		"paused":                        func(o *observation) { o.paused = "the Cluster is paused" },
		"the instances are kept anyway": func(o *observation) { o.pool.Spec.DeletionPolicy = v1beta1.DeletionRetain },
		"no owner":                      func(o *observation) { o.pool.OwnerReferences = nil },
		"the Cluster is deleted":        func(o *observation) { o.clusterDeleting = true },
		"a deletion that has begun":     func(o *observation) { o.shardGroups[0].DeletionTimestamp = ptr.To(metav1.Now()) },
		"a Machine that is deleted": func(o *observation) {
			o.nstanceMachines = []*v1beta1.NstanceMachine{{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: ptr.To(metav1.Now())}}}
		},
		"an owner of another API group":  func(o *observation) { o.pool.OwnerReferences[0].APIVersion = "example.com/v1" },
		"an owner that is no controller": func(o *observation) { o.pool.OwnerReferences[0].Controller = nil },
	} {
		o := owned()
		change(&o)
		assert.False(t, mayBeOrphaned(o), name)
	}
}

func TestContested(t *testing.T) {
	kept, deleted := machinePool("workers", ptr.To[int32](1)), machinePool("prod-workers", ptr.To[int32](1))
	deleted.DeletionTimestamp = ptr.To(metav1.Now())
	for name, test := range map[string]struct {
		machinePools    []*clusterv1.MachinePool
		clusterDeleting bool
		want            bool
	}{
		"none":                       {nil, false, false},
		"one that stays":             {[]*clusterv1.MachinePool{kept}, false, false},
		"one that is deleted":        {[]*clusterv1.MachinePool{deleted}, false, false},
		"one of two":                 {[]*clusterv1.MachinePool{kept, deleted}, false, true},
		"both":                       {[]*clusterv1.MachinePool{deleted, deleted}, false, false},
		"one of two, by its Cluster": {[]*clusterv1.MachinePool{kept, deleted}, true, false},
	} {
		assert.Equal(t, test.want, contested(observation{machinePools: test.machinePools, clusterDeleting: test.clusterDeleting}), name)
	}
}

func TestDeletionOfAPoolWaitsForItsShardGroups(t *testing.T) {
	pool := deletingPool("a", "b")
	pool.Spec.ProviderIDList = []string{"i-1", "i-2"}
	pool.OwnerReferences = []metav1.OwnerReference{{UID: "uid-machinepool-workers"}}
	h := newHarness(t, withSizes(map[string]int32{"a": 1, "b": 1}), pool, ready(newShardGroup(pool, "a", 1), "i-1"), ready(newShardGroup(pool, "b", 1), "i-2"))
	h.scale(2)
	h.expect(poolStatus, deleteA, deleteB)
	// A MachinePool that was created again under the name is not deleted.
	assert.Equal(t, []string{`DELETE machinepools/workers {"kind":"DeleteOptions","apiVersion":"cluster.x-k8s.io/v1beta2",` +
		`"preconditions":{"uid":"uid-machinepool-workers"}}`}, h.CAPI.Changed)
	h.Show()
	// The MachinePool is being deleted, and waits for the pool.
	inDeletion := machinePool("workers", ptr.To[int32](2))
	inDeletion.DeletionTimestamp = ptr.To(metav1.Now())
	require.NoError(t, h.Informers.MachinePools.GetIndexer().Update(inDeletion))
	h.CAPI.Changed = nil
	h.expect()
	h.report("b", func(g *v1beta1.NstanceShardGroup) {
		condition(g, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonDeleting, "the shard has not confirmed the deletion of the group: connection rejected")
	})
	h.expect(poolStatus)
	got := meta.FindStatusCondition(h.pool().Status.Conditions, v1beta1.ConditionReady)
	if want := "b: the shard has not confirmed the deletion of the group: connection rejected"; got.Reason != v1beta1.ReasonDeleting || got.Message != want {
		t.Errorf("Ready says %s: %q, want %q", got.Reason, got.Message, want)
	}

	h.report("b", func(g *v1beta1.NstanceShardGroup) {
		condition(g, v1beta1.ConditionReady, metav1.ConditionFalse, v1beta1.ReasonShardAhead, "the shard has size 9")
	})
	h.expect(poolStatus)
	got = meta.FindStatusCondition(h.pool().Status.Conditions, v1beta1.ConditionReady)
	if want := "b: the shard has size 9"; got.Reason != v1beta1.ReasonShardAhead || got.Message != want {
		t.Errorf("Ready says %s: %q, want %q", got.Reason, got.Message, want)
	}

	// Each shard confirms; the ids are removed with their group and not before.
	h.report("a", func(g *v1beta1.NstanceShardGroup) { g.Finalizers = nil })
	h.deleteShardGroup("a")
	h.expect(poolSpec, poolStatus)
	if got := h.pool().Spec.ProviderIDList; !slices.Equal(got, []string{"i-2"}) {
		t.Errorf("the ids are %q while shard b has its group", got)
	}
	h.deleteShardGroup("b")
	h.expect(removeFinalizerOfPool)
	if _, err := h.controller.pools.Get(t.Context(), "workers", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pool is still there: %v", err)
	}
	if len(h.CAPI.Changed) > 0 {
		t.Errorf("did %q to a MachinePool that is being deleted", h.CAPI.Changed)
	}
}

func TestDeletionOfAPoolWithoutGroupsIsOneWrite(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 4}), deletingPool("a"))
	h.expect(removeFinalizerOfPool)
}

// Cluster API never makes a MachinePool that is being deleted an owner of its pool, and
// then does not notice the deletion of the pool.
func TestDeletionMakesTheMachinePoolAnOwner(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 4}), deletingPool("a"))
	h.scale(2)
	h.expect(poolSpec)
	owners := h.pool().OwnerReferences
	if len(owners) != 1 || owners[0].UID != "uid-machinepool-workers" || owners[0].Name != "workers" ||
		owners[0].APIVersion != "cluster.x-k8s.io/v1beta2" || owners[0].Kind != "MachinePool" {
		t.Errorf("the owners are %+v", owners)
	}
	h.Show()
	h.expect(removeFinalizerOfPool)
}

func TestDeletionWaitsForAnUncachedMachinePool(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 4}), deletingPool("a"))
	made := newMachinePool(newPool("a"), "cluster--default", 4)
	_, err := h.controller.machinePools.Create(t.Context(), made, metav1.CreateOptions{})
	require.NoError(t, err)
	if writes, requeue, err := h.sync(); len(writes) > 0 || requeue != controller.StaleRetry || err != nil {
		t.Errorf("wrote %q, requeued after %v, error %v", writes, requeue, err)
	}
	h.CAPI.Created[0].SetName("of-another-pool")
	h.expect(removeFinalizerOfPool)
}

func TestDeletionWaitsWhileTheMachinePoolCannotBeDeleted(t *testing.T) {
	pool := deletingPool("a")
	pool.OwnerReferences = []metav1.OwnerReference{{UID: "uid-machinepool-workers"}}
	h := newHarness(t, withSizes(map[string]int32{"a": 4}), pool)
	h.scale(2)
	h.CAPI.Refused = apierrors.NewForbidden(schema.GroupResource{Resource: "machinepools"}, "workers", errors.New("by a webhook"))
	if writes, _, err := h.sync(); slices.Contains(writes, removeFinalizerOfPool) || !apierrors.IsForbidden(err) {
		t.Errorf("wrote %q, error %v", writes, err)
	}
	h.CAPI.Refused = nil
	h.Show()
	h.expect(removeFinalizerOfPool)
}

func TestDeletionOfAPausedPoolWaits(t *testing.T) {
	pool := deletingPool("a")
	pool.Annotations = map[string]string{"cluster.x-k8s.io/paused": ""}
	h := newHarness(t, withSizes(map[string]int32{"a": 1}), pool, ready(newShardGroup(pool, "a", 1), "i-1"))
	h.expect(poolStatus)
	h.Show()
	h.expect()
}

// poolInDeletion returns a pool that is being deleted, with these nstanceMachines by
// shard.
func poolInDeletion(on map[string][]string) observation {
	pool := deletingPool("a", "b")
	seen := observed(pool, 5, newShardGroup(pool, "a", 3), newShardGroup(pool, "b", 2))
	seen.pool.OwnerReferences = []metav1.OwnerReference{{UID: seen.machinePools[0].UID}}
	for _, id := range []string{"a", "b"} {
		for _, name := range on[id] {
			nstanceMachine, _ := newInstance(name, id, nil)
			seen.nstanceMachines = append(seen.nstanceMachines, nstanceMachine)
		}
	}
	for i := range seen.shards {
		seen.shards[i].reported = listed("a1", "a2", "a3")
	}
	return seen
}

// drained marks nstanceMachines as being deleted, as Cluster API does after a drain.
func drained(seen observation, names ...string) {
	for _, nstanceMachine := range seen.nstanceMachines {
		if slices.Contains(names, nstanceMachine.Name) {
			nstanceMachine.DeletionTimestamp = ptr.To(metav1.Now())
		}
	}
}

// Each drained Machine makes its shard smaller, and the shard group is deleted after
// the last.
func TestDeletionDrainsMachinesFirst(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*observation)
		size    int32
		first   []string
		removed bool
	}{
		"none is drained yet":          {func(*observation) {}, 3, nil, false},
		"one is drained":               {func(seen *observation) { drained(*seen, "a2") }, 2, []string{"a2"}, false},
		"all are drained":              {func(seen *observation) { drained(*seen, "a1", "a2", "a3") }, 0, []string{"a1", "a2", "a3"}, false},
		"there are none":               {func(seen *observation) { seen.nstanceMachines = seen.nstanceMachines[3:] }, 3, nil, true},
		"one that was selected before": {func(seen *observation) { drained(*seen, "a2"); seen.shards[0].group.Spec.RemoveFirst = []string{"a2"} }, 3, []string{"a2"}, false},
		"one more is drained": {func(seen *observation) {
			drained(*seen, "a1", "a2")
			seen.shards[0].group.Spec.RemoveFirst, seen.shards[0].group.Spec.Size = []string{"a2"}, 2
		}, 1, []string{"a2", "a1"}, false},
		"one that was terminated before": {func(seen *observation) {
			drained(*seen, "a2")
			seen.shards[0].reported.Instances[1].State = shard.InstanceTerminating
		}, 3, nil, false},
		"one that was terminated before, on a shard that is not synced": {func(seen *observation) {
			drained(*seen, "a2")
			meta.SetStatusCondition(&seen.nstanceMachines[1].Status.Conditions, metav1.Condition{Type: v1beta1.ConditionServerDeleted, Status: metav1.ConditionTrue, Reason: "Test"})
			seen.shards[0].synced, seen.shards[0].reported = false, nil
		}, 3, nil, false},
		"one on a shard that is not synced": {func(seen *observation) {
			drained(*seen, "a2")
			seen.shards[0].synced, seen.shards[0].reported = false, nil
		}, 2, []string{"a2"}, false},
		"more than the size": {func(seen *observation) { drained(*seen, "a1", "a2"); seen.shards[0].group.Spec.Size = 1 }, 0, []string{"a1"}, false},
		"one on a shard that the pool no longer names": {func(seen *observation) {
			drained(*seen, "a2")
			seen.shards = seen.shards[1:]
		}, 2, []string{"a2"}, false},
		"one that was selected before, on a shard that the pool no longer names": {func(seen *observation) {
			drained(*seen, "a2")
			seen.shards[0].group.Spec.RemoveFirst, seen.shards[0].group.Spec.Size = []string{"a2"}, 2
			seen.shards = seen.shards[1:]
		}, 2, []string{"a2"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			seen := poolInDeletion(map[string][]string{"a": {"a1", "a2", "a3"}, "b": {"b1"}})
			group := seen.shardGroups[0]
			test.change(&seen)
			d := planOf(seen)
			if removed := slices.Contains(d.deleteShardGroups, group); removed != test.removed || d.removeFinalizer {
				t.Errorf("its shard group is removed: %t, want %t; the finalizer is removed: %t", removed, test.removed, d.removeFinalizer)
			}
			got := wantedShardGroup{spec: group.Spec}
			if len(d.apply) > 0 {
				got = d.apply[0]
				if got.uid != string(group.UID) || len(d.apply) > 1 {
					t.Errorf("writes %+v", d.apply)
				}
			}
			if got.spec.Size != test.size || !slices.Equal(got.spec.RemoveFirst, test.first) {
				t.Errorf("got size %d and removes %q first, want %d and %q", got.spec.Size, got.spec.RemoveFirst, test.size, test.first)
			}
			if slices.Contains(d.deleteShardGroups, seen.shardGroups[1]) {
				t.Error("shard b has a Machine to drain, and its group is removed")
			}
		})
	}
}

// A pool that is being deleted waits for its last NstanceMachine.
func TestDeletionWaitsForNstanceMachines(t *testing.T) {
	seen := poolInDeletion(map[string][]string{"a": {"a1"}})
	if blocked := deletionBlocked(seen); blocked == nil || blocked.message != "b: the group is being removed" {
		t.Errorf("with a Machine to drain on the other shard it is blocked by %+v", blocked)
	}
	seen.shardGroups = seen.shardGroups[:1]
	if blocked := deletionBlocked(seen); blocked != nil {
		t.Errorf("with a Machine to drain it is blocked by %+v", blocked)
	}
	seen.shardGroups, seen.shards, seen.machinePools = nil, nil, nil
	if d := planOf(seen); d.removeFinalizer || d.blocked.message != "the pool is being deleted and waits for the Machines of its instances" {
		t.Errorf("finalizer removed: %t while it has an NstanceMachine; the message is %q", d.removeFinalizer, d.blocked.message)
	}
	seen.nstanceMachines = nil
	if d := planOf(seen); !d.removeFinalizer {
		t.Error("the finalizer is not removed")
	}
}

// NstanceMachines of a former pool with the same name do not count.
func TestDeletionIgnoresNstanceMachinesOfAFormerPool(t *testing.T) {
	former, _ := newInstance("a1", "a", nil)
	former.OwnerReferences[0].UID = "uid-of-former"
	h := newHarness(t, withSizes(map[string]int32{"a": 4}), deletingPool("a"), former)
	h.expect(removeFinalizerOfPool)
}

func retainedPool(shards ...v1beta1.Identifier) *v1beta1.NstanceMachinePool {
	pool := newPool(shards...)
	pool.Spec.DeletionPolicy = v1beta1.DeletionRetain
	return pool
}

// The default is not written, so that shard groups from before stay as they are.
func TestShardGroupsGetThePolicyRetain(t *testing.T) {
	for _, policy := range []v1beta1.DeletionPolicy{"", v1beta1.DeletionDelete} {
		pool := newPool("a")
		pool.Spec.DeletionPolicy = policy
		assert.Empty(t, planOf(observed(pool, 1, newShardGroup(newPool("a"), "a", 1))).apply)
	}
	h := newHarness(t, withSizes(map[string]int32{"a": 1}), retainedPool("a"))
	h.scale(1)
	h.expect(groupA)
	assert.Equal(t, v1beta1.DeletionRetain, h.shardGroup("a").Spec.DeletionPolicy)
	h.updatePool(func(pool *v1beta1.NstanceMachinePool) { pool.Spec.DeletionPolicy = v1beta1.DeletionDelete })
	h.settle()
	assert.Empty(t, h.shardGroup("a").Spec.DeletionPolicy)
	assert.Equal(t, int32(1), h.shardGroup("a").Spec.Size)
}

// Each shard group has the policy of the pool before it is deleted, also if the policy was
// changed just before the deletion.
func TestShardGroupsAreDeletedWithThePolicyOfThePool(t *testing.T) {
	now := metav1.Now()
	for name, test := range map[string]struct {
		pool, group v1beta1.DeletionPolicy
		change      func(*observation)
		// applied is the written policy, "none" if no policy is written.
		applied v1beta1.DeletionPolicy
		deleted bool
	}{
		"Retain":                            {v1beta1.DeletionRetain, v1beta1.DeletionRetain, nil, "none", true},
		"Retain, and it is not written yet": {v1beta1.DeletionRetain, "", nil, v1beta1.DeletionRetain, false},
		"Retain, with Machines": {v1beta1.DeletionRetain, v1beta1.DeletionRetain, func(seen *observation) {
			nstanceMachine, _ := newInstance("a1", "a", nil)
			seen.nstanceMachines = append(seen.nstanceMachines, nstanceMachine)
			drained(*seen, "a1")
		}, "none", true},
		"Retain, and it is being deleted without": {v1beta1.DeletionRetain, "", func(seen *observation) {
			seen.shardGroups[0].DeletionTimestamp = &now
		}, v1beta1.DeletionRetain, false},
		"Retain, and it is being deleted": {v1beta1.DeletionRetain, v1beta1.DeletionRetain, func(seen *observation) {
			seen.shardGroups[0].DeletionTimestamp = &now
		}, "none", false},
		"Delete":                    {v1beta1.DeletionDelete, "", nil, "none", true},
		"Delete, and Retain before": {v1beta1.DeletionDelete, v1beta1.DeletionRetain, nil, "", false},
		"Delete, and it is being deleted by Retain": {"", v1beta1.DeletionRetain, func(seen *observation) { seen.shardGroups[0].DeletionTimestamp = &now }, "none", false},
	} {
		t.Run(name, func(t *testing.T) {
			pool := deletingPool("a")
			pool.Spec.DeletionPolicy = test.pool
			group := newShardGroup(pool, "a", 3)
			group.Spec.DeletionPolicy = test.group
			seen := observed(pool, 3, group)
			if test.change != nil {
				test.change(&seen)
			}
			d := planOf(seen)
			if test.applied == "none" {
				assert.Empty(t, d.apply)
			} else {
				assert.Len(t, d.apply, 1)
				assert.Equal(t, test.applied, d.apply[0].spec.DeletionPolicy)
				assert.Equal(t, int32(3), d.apply[0].spec.Size)
			}
			assert.Equal(t, test.deleted, len(d.deleteShardGroups) == 1)
			assert.False(t, d.removeFinalizer)
		})
	}
}

// The instances on a shard that is removed from the pool are replaced on the others.
func TestRetainIsNotForARemovedShard(t *testing.T) {
	pool := retainedPool("a", "b")
	removed := newShardGroup(pool, "b", 2)
	pool.Spec.Shards = pool.Spec.Shards[:1]
	d := planOf(observed(pool, 2, newShardGroup(pool, "a", 2), removed))
	assert.Empty(t, d.deleteShardGroups)
	assert.Len(t, d.apply, 1)
	assert.Empty(t, d.apply[0].spec.DeletionPolicy)
	removed.Spec.DeletionPolicy = ""
	d = planOf(observed(pool, 2, newShardGroup(pool, "a", 2), removed))
	assert.Len(t, d.deleteShardGroups, 1)
	assert.Empty(t, d.apply)
}

func TestAShardIsRemovedFromARetainedPool(t *testing.T) {
	pool := retainedPool("a", "b")
	removed := ready(newShardGroup(pool, "b", 2))
	pool.Spec.Shards = pool.Spec.Shards[:1]
	h := newHarness(t, withSizes(map[string]int32{"a": 2, "b": 2}), pool, ready(newShardGroup(pool, "a", 2)), removed)
	h.scale(2)
	writes, _, err := h.sync()
	require.NoError(t, err)
	assert.Contains(t, writes, groupB, "its policy")
}

// Cluster API deletes the Node of an id that leaves the list.
func TestRetainKeepsProviderIDs(t *testing.T) {
	pool := retainedPool("a", "b")
	now := metav1.Now()
	pool.DeletionTimestamp = &now
	pool.Spec.ProviderIDList = []string{"i-1", "i-2"}
	pool.OwnerReferences = []metav1.OwnerReference{{UID: "uid-machinepool-workers"}}
	h := newHarness(t, withSizes(map[string]int32{"a": 1, "b": 1}), pool, ready(newShardGroup(pool, "a", 1), "i-1"), ready(newShardGroup(pool, "b", 1), "i-2"))
	h.scale(2)
	h.expect(poolStatus, deleteA, deleteB)
	h.Show()
	h.deleteShardGroup("a")
	writes, _, err := h.sync()
	assert.NoError(t, err)
	assert.NotContains(t, writes, poolSpec)
	assert.Equal(t, []string{"i-1", "i-2"}, h.pool().Spec.ProviderIDList)
	h.Show()
	h.deleteShardGroup("b")
	h.expect(removeFinalizerOfPool)
}
