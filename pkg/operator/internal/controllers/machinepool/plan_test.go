// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
)

// describe returns a decision as text.
func describe(d decision) string {
	var words []string
	if d.create != nil {
		words = append(words, fmt.Sprintf("create MachinePool %d", *d.create))
	}
	for _, want := range d.apply {
		verb := "update"
		if want.uid == "" {
			verb = "create"
		}
		words = append(words, fmt.Sprintf("%s %s=%d", verb, want.spec.Shard, want.spec.Size))
	}
	if d.raise != nil {
		words = append(words, fmt.Sprintf("raise to %d", *d.raise))
	}
	for _, machinePool := range d.deleteMachinePools {
		words = append(words, "delete MachinePool "+machinePool.Name)
	}
	if d.removeFinalizer {
		words = append(words, "remove finalizer")
	}
	for _, group := range d.deleteShardGroups {
		words = append(words, "delete "+string(group.Spec.Shard))
	}
	if d.blocked != nil {
		words = append(words, "blocked "+d.blocked.reason)
	}
	return strings.Join(words, ", ")
}

// keeping lets the shard of a shard group guarantee a smallest size.
func keeping(size int32, group *v1beta1.NstanceShardGroup) *v1beta1.NstanceShardGroup {
	group.Status.MinReplicas = &size
	return group
}

func TestPlan(t *testing.T) {
	pool := newPool("b", "a", "c")
	otherPool := newPool("a")
	otherPool.Name, otherPool.UID = "other", "uid-other"
	owned := pool.DeepCopy()
	owned.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: clusterv1.GroupVersion.String(), Kind: "MachinePool", Name: "workers", UID: "uid-vanished", Controller: ptr.To(true),
	}}
	deleting := func(group *v1beta1.NstanceShardGroup) *v1beta1.NstanceShardGroup {
		group.DeletionTimestamp = ptr.To(metav1.Now())
		return group
	}
	with := func(seen observation, change func(*observation)) observation {
		change(&seen)
		return seen
	}
	changed := func(change func(*v1beta1.NstanceShardGroup)) observation {
		group := newShardGroup(pool, "a", 3)
		change(group)
		return observed(pool, 9, newShardGroup(pool, "b", 3), group, newShardGroup(pool, "c", 3))
	}

	tests := map[string]struct {
		seen observation
		want string
	}{
		"ten replicas over three shards": {
			observed(pool, 10), "create b=4, create a=3, create c=3",
		},
		"four replicas over three shards": {
			observed(pool, 4), "create b=2, create a=1, create c=1",
		},
		"no replicas still have a group on every shard": {
			observed(pool, 0), "create b=0, create a=0, create c=0",
		},
		"negative replicas count as zero": {
			observed(pool, -3), "create b=0, create a=0, create c=0",
		},
		"the remainder follows the order of the spec and not of the names": {
			observed(pool, 10, newShardGroup(pool, "a", 3), newShardGroup(pool, "b", 3), newShardGroup(pool, "c", 3)), "update b=4",
		},
		"nothing has changed": {
			observed(pool, 10, newShardGroup(pool, "b", 4), newShardGroup(pool, "a", 3), newShardGroup(pool, "c", 3)), "",
		},
		"scaling to zero is a number of the user": {
			observed(pool, 0, newShardGroup(pool, "b", 4), newShardGroup(pool, "a", 3), newShardGroup(pool, "c", 3)),
			"update b=0, update a=0, update c=0",
		},
		"an unknown shard blocks everything": {
			with(observed(pool, 0, newShardGroup(pool, "b", 4), newShardGroup(pool, "a", 3)), func(seen *observation) {
				seen.shards[2].configured = false
			}), "blocked UnknownShard",
		},
		"an unknown shard keeps its size, and the others are scaled": {
			with(observed(pool, 12, newShardGroup(pool, "b", 3), newShardGroup(pool, "a", 3), newShardGroup(pool, "c", 3)), func(seen *observation) {
				seen.shards[0].configured, seen.shards[0].synced = false, false
			}), "update b=3, update a=5, update c=4",
		},
		"an unknown shard keeps its size when the others are scaled to zero": {
			with(observed(pool, 2, newShardGroup(pool, "b", 3), newShardGroup(pool, "a", 3), newShardGroup(pool, "c", 3)), func(seen *observation) {
				seen.shards[0].configured, seen.shards[0].synced = false, false
			}), "update b=3, update a=0, update c=0",
		},
		"an unknown shard is not resized for the replicas of before": {
			with(observed(pool, 10, newShardGroup(pool, "b", 4), newShardGroup(pool, "a", 3), newShardGroup(pool, "c", 3)), func(seen *observation) {
				seen.shards[0].configured, seen.shards[0].synced = false, false
			}), "",
		},
		"no MachinePool is created without the size of an unknown shard": {
			with(observed(pool, 0, newShardGroup(pool, "b", 3), newShardGroup(pool, "a", 3), newShardGroup(pool, "c", 3)), func(seen *observation) {
				seen.machinePools, seen.shards[0].configured = nil, false
			}), "blocked UnknownShard",
		},
		"an unknown shard keeps the group of a removed one": {
			with(observed(pool, 0, newShardGroup(pool, "d", 4)), func(seen *observation) {
				seen.shards[0].configured = false
			}), "blocked UnknownShard",
		},
		"a MachinePool without replicas blocks everything": {
			with(observed(pool, 0, newShardGroup(pool, "b", 4)), func(seen *observation) {
				seen.machinePools[0].Spec.Replicas = nil
			}), "blocked NoMachinePool",
		},
		"more replicas than a pool can have block everything": {
			observed(pool, 10_001, newShardGroup(pool, "b", 4), newShardGroup(pool, "a", 3), newShardGroup(pool, "c", 3)), "blocked TooManyReplicas",
		},
		"so do the most that the scale subresource accepts": {
			observed(pool, math.MaxInt32, newShardGroup(pool, "b", 4)), "blocked TooManyReplicas",
		},
		"as many replicas as a pool can have": {
			observed(pool, 10_000), "create b=3334, create a=3333, create c=3333",
		},
		"fewer replicas than the shards guarantee block everything": {
			observed(pool, 3, keeping(2, newShardGroup(pool, "b", 4)), keeping(2, newShardGroup(pool, "a", 3)), newShardGroup(pool, "c", 3)), "blocked BelowMinimum",
		},
		"as many replicas as the shards guarantee": {
			observed(pool, 4, keeping(2, newShardGroup(pool, "b", 4)), keeping(2, newShardGroup(pool, "a", 3)), newShardGroup(pool, "c", 3)),
			"update b=2, update a=2, update c=0",
		},
		"a shard gets what it guarantees": {
			observed(pool, 6, newShardGroup(pool, "b", 2), keeping(4, newShardGroup(pool, "a", 2)), newShardGroup(pool, "c", 2)),
			"update b=1, update a=4, update c=1",
		},
		"the guarantee of a shard that is not configured is not known": {
			with(observed(pool, 3, keeping(4, newShardGroup(pool, "b", 4)), newShardGroup(pool, "a", 3), newShardGroup(pool, "c", 3)), func(seen *observation) {
				seen.shards[0].configured, seen.shards[0].synced = false, false
			}), "update b=4, update a=0, update c=0",
		},
		"two MachinePools block everything": {
			with(observed(pool, 0, newShardGroup(pool, "b", 4)), func(seen *observation) {
				seen.machinePools = append(seen.machinePools, machinePool("second", ptr.To[int32](7)))
			}), "blocked MachinePoolConflict",
		},
		"a MachinePool of the pool's name that refers to another object blocks everything": {
			with(observed(pool, 0, newShardGroup(pool, "b", 4)), func(seen *observation) {
				seen.machinePools, seen.nameTaken = nil, true
			}), "blocked MachinePoolConflict",
		},
		"a MachinePool of another name counts": {
			with(observed(pool, 3), func(seen *observation) {
				seen.machinePools[0].Name, seen.nameTaken = "other", true
			}), "create b=1, create a=1, create c=1",
		},
		"a missing MachinePool is not created before every shard was read": {
			with(observed(pool, 0, newShardGroup(pool, "b", 4)), func(seen *observation) {
				seen.machinePools = nil
				seen.shards[1].synced = false
			}), "blocked NotSynced",
		},
		"a missing MachinePool is created with the current number of instances": {
			with(observed(pool, 0), func(seen *observation) {
				seen.machinePools = nil
				seen.shards[0].size, seen.shards[2].size = 5, 2
			}), "create MachinePool 7, blocked NoMachinePool",
		},
		"a missing MachinePool of a group without instances is created with zero replicas": {
			with(observed(pool, 0), func(seen *observation) { seen.machinePools = nil }), "create MachinePool 0, blocked NoMachinePool",
		},
		"a missing MachinePool that owns the pool is not created: the garbage collector deletes the pool": {
			with(observed(owned, 0), func(seen *observation) { seen.machinePools = nil }), "blocked NoMachinePool",
		},
		"an unread shard gets the user's number": {
			with(observed(pool, 3), func(seen *observation) { seen.shards[1].synced = false }),
			"create b=1, create a=1, create c=1",
		},
		"a group that belongs to another pool blocks everything": {
			observed(pool, 9, newShardGroup(otherPool, "a", 4)), "blocked GroupInUse",
		},
		"the group on a shard that the pool no longer names is deleted": {
			observed(pool, 9, newShardGroup(pool, "b", 3), newShardGroup(pool, "a", 3), newShardGroup(pool, "c", 3), newShardGroup(pool, "d", 3)),
			"delete d",
		},
		"a removed group that is being deleted stays unchanged": {
			observed(pool, 9, newShardGroup(pool, "b", 3), newShardGroup(pool, "a", 3), newShardGroup(pool, "c", 3), deleting(newShardGroup(pool, "d", 3))),
			"",
		},
		"a group that is being deleted is not changed": {
			observed(pool, 30, newShardGroup(pool, "b", 3), deleting(newShardGroup(pool, "a", 3)), newShardGroup(pool, "c", 3)),
			"update b=10, update c=10",
		},
		"default replicas are raised to the current number of instances": {
			with(observed(pool, 1), func(seen *observation) {
				withDefaultReplicas(seen.machinePools[0])
				seen.shards[0].size, seen.shards[2].size = 5, 2
			}), "raise to 7, blocked NoMachinePool",
		},
		"default replicas wait for every shard": {
			with(observed(pool, 1), func(seen *observation) {
				withDefaultReplicas(seen.machinePools[0])
				seen.shards[0].synced = false
			}), "blocked NotSynced",
		},
		"default replicas count if they terminate nothing": {
			with(observed(pool, 1), func(seen *observation) { withDefaultReplicas(seen.machinePools[0]) }), "create b=1, create a=0, create c=0",
		},
		"explicit replicas count": {
			with(observed(pool, 1), func(seen *observation) { seen.shards[0].size = 5 }), "create b=1, create a=0, create c=0",
		},
		"as many replicas as instances stay on their shards": {
			with(observed(pool, 7), func(seen *observation) { seen.shards[0].size, seen.shards[2].size = 5, 2 }),
			"create b=5, create a=0, create c=2",
		},
		"a MachinePool that is being deleted blocks everything": {
			with(observed(pool, 0, newShardGroup(pool, "b", 4)), func(seen *observation) {
				seen.machinePools[0].DeletionTimestamp = ptr.To(metav1.Now())
			}), "blocked Deleting",
		},
		"no MachinePool is created while the Cluster is being deleted": {
			with(observed(pool, 0), func(seen *observation) { seen.machinePools, seen.clusterDeleting = nil, true }), "blocked NoMachinePool",
		},
		"a paused pool": {
			with(observed(pool, 30, newShardGroup(pool, "b", 4)), func(seen *observation) { seen.paused = "the pool" }), "",
		},
		"a pool that is being deleted": {
			observed(deletingPool("b"), 30, newShardGroup(pool, "b", 4), newShardGroup(pool, "d", 4), deleting(newShardGroup(pool, "e", 4))),
			"delete MachinePool workers, delete b, delete d, blocked Deleting",
		},
		"a pool that is being deleted and has nothing left": {
			with(observed(deletingPool("b"), 30), func(seen *observation) { seen.machinePools = nil }), "remove finalizer, blocked Deleting",
		},
		"another template": {changed(func(g *v1beta1.NstanceShardGroup) { g.Spec.Template = "old" }), "update a=3"},
		"another type":     {changed(func(g *v1beta1.NstanceShardGroup) { g.Spec.InstanceType = "" }), "update a=3"},
		"other subnets":    {changed(func(g *v1beta1.NstanceShardGroup) { g.Spec.Subnets = nil }), "update a=3"},
		"other vars":       {changed(func(g *v1beta1.NstanceShardGroup) { g.Spec.Vars = map[string]string{"a": "2"} }), "update a=3"},
		"lost labels":      {changed(func(g *v1beta1.NstanceShardGroup) { g.Labels = nil }), "update a=3"},
		"lost finalizer":   {changed(func(g *v1beta1.NstanceShardGroup) { g.Finalizers = nil }), "update a=3"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d := planOf(test.seen)
			if got := describe(d); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if d.blocked != nil && test.seen.pool.DeletionTimestamp.IsZero() && (d.sizes != nil || len(d.apply)+len(d.deleteShardGroups) > 0) {
				t.Errorf("something is done while it is blocked: %+v", d)
			}
		})
	}
}

func TestPlanNamesBlockingShardsAndMachinePools(t *testing.T) {
	pool := newPool("a", "b", "c")
	seen := observed(pool, 3)
	seen.shards[0].configured, seen.shards[2].configured = false, false
	if got, want := planOf(seen).blocked.message, "spec.shards names shards that are not configured: a, c"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	seen = observed(pool, 3)
	seen.machinePools = []*clusterv1.MachinePool{machinePool("z", nil), machinePool("y", nil)}
	if got, want := planOf(seen).blocked.message, "2 MachinePools refer to this pool: y, z"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPlanNamesTheMinima(t *testing.T) {
	pool := newPool("a", "b", "c")
	seen := observed(pool, 4, keeping(3, newShardGroup(pool, "a", 3)), keeping(2, newShardGroup(pool, "b", 3)), newShardGroup(pool, "c", 3))
	assert.Equal(t, `the shards keep at least 5 instances (a 3, b 2), and MachinePool "workers" has 4 replicas; the sizes stay`, planOf(seen).blocked.message)
	assert.Equal(t, ptr.To[int32](5), statusOf(seen).MinReplicas)
	assert.Nil(t, statusOf(observed(pool, 4, newShardGroup(pool, "a", 3))).MinReplicas)
}

func TestPlanCopiesThePoolsSettings(t *testing.T) {
	pool := newPool("a")
	d := planOf(observed(pool, 2))
	got := d.apply[0].spec
	if got.Group != "workers" || got.Shard != "a" || got.Template != "standard" || got.InstanceType != "large" ||
		!slices.Equal(got.Subnets, pool.Spec.Subnets) || got.Vars["a"] != "1" {
		t.Errorf("got %+v", got)
	}
}

func TestReplicasExplicit(t *testing.T) {
	pool := newPool("a")
	spread := []*v1beta1.NstanceShardGroup{newShardGroup(pool, "a", 1)}
	for name, test := range map[string]struct {
		owned  []*v1beta1.NstanceShardGroup
		change func(*clusterv1.MachinePool)
		want   bool
	}{
		"no record at all":      {nil, func(*clusterv1.MachinePool) {}, true},
		"made without a number": {nil, func(m *clusterv1.MachinePool) { withDefaultReplicas(m) }, false},
		"made with a number": {nil, func(m *clusterv1.MachinePool) {
			m.ManagedFields = []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{}}}`)}}
		}, true},
		// It may have been edited in some other field.
		"changed since it was made without a number": {nil, func(m *clusterv1.MachinePool) { withDefaultReplicas(m).Generation = 2 }, false},
		// The scale subresource leaves no owner.
		"scaled after the pool was spread": {spread, func(m *clusterv1.MachinePool) { withDefaultReplicas(m).Generation = 2 }, true},
	} {
		object := machinePool("workers", ptr.To[int32](1))
		object.Generation = 1
		test.change(object)
		if got := replicasExplicit(observation{pool: pool, shardGroups: test.owned}, object); got != test.want {
			t.Errorf("%s: got %t, want %t", name, got, test.want)
		}
	}
}

// Sizes that an earlier version kept are not divided evenly.
func TestOutdatedAnnotationsBlockAPool(t *testing.T) {
	for _, annotation := range []string{"nstance.dev/kept-for", "nstance.dev/lent"} {
		pool := newPool("a", "b")
		group := ready(newShardGroup(pool, "a", 5))
		group.Annotations = map[string]string{annotation: "6 over a,b"}
		d := planOf(observed(pool, 6, group, ready(newShardGroup(pool, "b", 1))))
		assert.NotNil(t, d.blocked, annotation)
		assert.Equal(t, v1beta1.ReasonOutdatedObject, d.blocked.reason)
		assert.Contains(t, d.blocked.message, annotation)
		assert.Empty(t, d.apply)
	}
}

// After a restore of etcd the shard groups have size 2, and the shards size 6.
func TestChangedReplicasReplaceWhatTheShardsHave(t *testing.T) {
	for name, test := range map[string]struct {
		replicas int32
		// onB is the size of the shard group on shard b, 2 if it is 0.
		onB    int32
		change func(*shard.Revision)
		want   map[string]string
	}{
		"the replicas of the backup replace nothing": {replicas: 4, want: map[string]string{"a": "", "b": ""}},
		"as many as the shards have":                 {replicas: 12, want: map[string]string{"a": "uid-a/9", "b": "uid-b/9"}},
		"the size of one shard group is unchanged":   {replicas: 12, onB: 6, want: map[string]string{"a": "uid-a/9", "b": "uid-b/9"}},
		"more than the shards have":                  {replicas: 20, want: map[string]string{"a": "uid-a/9", "b": "uid-b/9"}},
		"one shard would terminate an instance":      {replicas: 11, want: map[string]string{"a": "uid-a/9", "b": ""}},
		"fewer than in the backup":                   {replicas: 2, want: map[string]string{"a": "", "b": ""}},
		"the shard group is the newer one": {replicas: 12, want: map[string]string{"a": "", "b": ""},
			change: func(r *shard.Revision) { r.Generation = 1 }},
		"the shard has the group of another object": {replicas: 12, want: map[string]string{"a": "", "b": ""},
			change: func(r *shard.Revision) { r.UID = "uid-other" }},
	} {
		t.Run(name, func(t *testing.T) {
			pool := newPool("a", "b")
			groups := map[string]*shard.Group{}
			restored := map[string]*v1beta1.NstanceShardGroup{}
			for _, id := range []string{"a", "b"} {
				revision := &shard.Revision{UID: "uid-" + id, Generation: 9}
				if test.change != nil {
					test.change(revision)
				}
				groups[id] = &shard.Group{Key: "workers", Size: 6, Revision: revision}
				size := int32(2)
				if id == "b" {
					size = max(size, test.onB)
				}
				restored[id] = ready(newShardGroup(pool, id, size))
				restored[id].UID, restored[id].Generation = types.UID("uid-"+id), 1
			}
			h := newHarness(t, withGroups(groups), pool, restored["a"], restored["b"])
			h.scale(test.replicas)
			_, _, err := h.sync()
			assert.NoError(t, err)
			for id, want := range test.want {
				var got string
				if revision := h.shardGroup(id).Spec.Overwrites; revision != nil {
					got = fmt.Sprintf("%s/%d", revision.UID, revision.Generation)
				}
				assert.Equal(t, want, got, id)
			}
			// It stays until the shard has the shard group.
			h.Show()
			h.expect()
		})
	}
}

// A shard whose configuration has lost the group, or that is not configured any more, can
// be removed from the pool.
func TestStatusStaticShards(t *testing.T) {
	pool := newPool("a", "b", "c", "d")
	group := func(shard string, static bool) *v1beta1.NstanceShardGroup {
		group := ready(newShardGroup(pool, shard, 1))
		group.Status.IsStatic = &static
		return group
	}
	seen := observed(pool, 4, group("a", true), group("b", false), group("c", true), away(group("d", true)))
	seen.shards[2].configured = false
	status := statusOf(seen)
	want := []v1beta1.Identifier{"a", "d"}
	if !slices.Equal(status.StaticShards, want) || !*status.IsStatic {
		t.Errorf("the static shards are %q, want %q; static is %t", status.StaticShards, want, *status.IsStatic)
	}
	if got := applyStatus(pool, status).Status.StaticShards; !slices.Equal(got, want) {
		t.Errorf("%q are applied, want %q", got, want)
	}
	pool.Status = status
	if got := statusOf(observed(pool, 4, group("a", false), group("b", false), group("c", false), group("d", false))).StaticShards; len(got) > 0 {
		t.Errorf("the static shards are %q, want none", got)
	}
}

// No instance is moved when a shard is configured again.
func TestSizesStayWhenAShardIsConfiguredAgain(t *testing.T) {
	pool := newPool("a", "b", "c")
	seen := observed(pool, 12, newShardGroup(pool, "a", 3), newShardGroup(pool, "b", 3), newShardGroup(pool, "c", 3))
	seen.shards[2].configured, seen.shards[2].synced = false, false
	step := func(want string) {
		t.Helper()
		d := planOf(seen)
		if got := describe(d); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		seen = carriedOut(seen, d)
	}
	step("update a=5, update b=4, update c=3")
	step("")
	seen.shards[2].configured, seen.shards[2].synced = true, true
	step("")
	seen.machinePools[0].Spec.Replicas = ptr.To[int32](13)
	step("update a=5, update b=4, update c=4")
	step("")
}
