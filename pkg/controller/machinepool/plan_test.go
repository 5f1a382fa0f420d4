// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// told is a decision in words.
func told(d decision) string {
	var words []string
	if d.create != nil {
		words = append(words, fmt.Sprintf("create %d", *d.create))
	}
	for _, want := range d.apply {
		verb := "change"
		if want.uid == "" {
			verb = "make"
		}
		words = append(words, fmt.Sprintf("%s %s=%d", verb, want.spec.Shard, want.spec.Size))
	}
	if d.raise != nil {
		words = append(words, fmt.Sprintf("raise to %d", *d.raise))
	}
	for _, machinePool := range d.removeMachinePools {
		words = append(words, "remove MachinePool "+machinePool.Name)
	}
	if d.release {
		words = append(words, "release")
	}
	for _, group := range d.remove {
		words = append(words, "remove "+string(group.Spec.Shard))
	}
	if d.hold != nil {
		words = append(words, "hold "+d.hold.reason)
	}
	return strings.Join(words, ", ")
}

func TestPlan(t *testing.T) {
	pool := newPool("b", "a", "c")
	stranger := newPool("a")
	stranger.Name, stranger.UID = "stranger", "uid-stranger"
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
			observed(pool, 10), "make b=4, make a=3, make c=3",
		},
		"four replicas over three shards": {
			observed(pool, 4), "make b=2, make a=1, make c=1",
		},
		"no replicas still have a group on every shard": {
			observed(pool, 0), "make b=0, make a=0, make c=0",
		},
		"negative replicas count as none": {
			observed(pool, -3), "make b=0, make a=0, make c=0",
		},
		"the remainder follows the order of the spec and not of the names": {
			observed(pool, 10, newShardGroup(pool, "a", 3), newShardGroup(pool, "b", 3), newShardGroup(pool, "c", 3)), "change b=4",
		},
		"nothing has changed": {
			observed(pool, 10, newShardGroup(pool, "b", 4), newShardGroup(pool, "a", 3), newShardGroup(pool, "c", 3)), "",
		},
		"scaling to zero is a number of the user": {
			observed(pool, 0, newShardGroup(pool, "b", 4), newShardGroup(pool, "a", 3), newShardGroup(pool, "c", 3)),
			"change b=0, change a=0, change c=0",
		},
		"an unknown shard holds everything": {
			with(observed(pool, 0, newShardGroup(pool, "b", 4), newShardGroup(pool, "a", 3)), func(seen *observation) {
				seen.shards[2].configured = false
			}), "hold UnknownShard",
		},
		"an unknown shard keeps the group of a removed one": {
			with(observed(pool, 0, newShardGroup(pool, "d", 4)), func(seen *observation) {
				seen.shards[0].configured = false
			}), "hold UnknownShard",
		},
		"a MachinePool without replicas holds everything": {
			with(observed(pool, 0, newShardGroup(pool, "b", 4)), func(seen *observation) {
				seen.machinePools[0].Spec.Replicas = nil
			}), "hold NoMachinePool",
		},
		"two MachinePools hold everything": {
			with(observed(pool, 0, newShardGroup(pool, "b", 4)), func(seen *observation) {
				seen.machinePools = append(seen.machinePools, machinePool("second", ptr.To[int32](7)))
			}), "hold MachinePoolConflict",
		},
		"a MachinePool of the pool's name that refers elsewhere holds everything": {
			with(observed(pool, 0, newShardGroup(pool, "b", 4)), func(seen *observation) {
				seen.machinePools, seen.namesake = nil, true
			}), "hold MachinePoolConflict",
		},
		"a MachinePool of another name counts": {
			with(observed(pool, 3), func(seen *observation) {
				seen.machinePools[0].Name, seen.namesake = "other", true
			}), "make b=1, make a=1, make c=1",
		},
		"a missing MachinePool is not made before every shard was read": {
			with(observed(pool, 0, newShardGroup(pool, "b", 4)), func(seen *observation) {
				seen.machinePools = nil
				seen.shards[1].synced = false
			}), "hold NotSynced",
		},
		"a missing MachinePool is made with the sum of what there is": {
			with(observed(pool, 0), func(seen *observation) {
				seen.machinePools = nil
				seen.shards[0].size, seen.shards[2].size = 5, 2
			}), "create 7, hold NoMachinePool",
		},
		"a missing MachinePool of a group that is nowhere is made with none": {
			with(observed(pool, 0), func(seen *observation) { seen.machinePools = nil }), "create 0, hold NoMachinePool",
		},
		"an unread shard gets the user's number": {
			with(observed(pool, 3), func(seen *observation) { seen.shards[1].synced = false }),
			"make b=1, make a=1, make c=1",
		},
		"a group that belongs to another pool holds everything": {
			observed(pool, 9, newShardGroup(stranger, "a", 4)), "hold GroupInUse",
		},
		"a shard that the pool no longer names loses its group": {
			observed(pool, 9, newShardGroup(pool, "b", 3), newShardGroup(pool, "a", 3), newShardGroup(pool, "c", 3), newShardGroup(pool, "d", 3)),
			"remove d",
		},
		"a removed group that is being deleted is left alone": {
			observed(pool, 9, newShardGroup(pool, "b", 3), newShardGroup(pool, "a", 3), newShardGroup(pool, "c", 3), deleting(newShardGroup(pool, "d", 3))),
			"",
		},
		"a group that is being deleted is not changed": {
			observed(pool, 30, newShardGroup(pool, "b", 3), deleting(newShardGroup(pool, "a", 3)), newShardGroup(pool, "c", 3)),
			"change b=10, change c=10",
		},
		"replicas that nobody asked for are raised to what there is": {
			with(observed(pool, 1), func(seen *observation) {
				unasked(seen.machinePools[0])
				seen.shards[0].size, seen.shards[2].size = 5, 2
			}), "raise to 7, hold NoMachinePool",
		},
		"replicas that nobody asked for wait for every shard": {
			with(observed(pool, 1), func(seen *observation) {
				unasked(seen.machinePools[0])
				seen.shards[0].synced = false
			}), "hold NotSynced",
		},
		"replicas that nobody asked for count when they end nothing": {
			with(observed(pool, 1), func(seen *observation) { unasked(seen.machinePools[0]) }), "make b=1, make a=0, make c=0",
		},
		"replicas that a user asked for count": {
			with(observed(pool, 1), func(seen *observation) { seen.shards[0].size = 5 }), "make b=1, make a=0, make c=0",
		},
		"as many replicas as there are stay where they are": {
			with(observed(pool, 7), func(seen *observation) { seen.shards[0].size, seen.shards[2].size = 5, 2 }),
			"make b=5, make a=0, make c=2",
		},
		"a MachinePool that is being deleted holds everything": {
			with(observed(pool, 0, newShardGroup(pool, "b", 4)), func(seen *observation) {
				seen.machinePools[0].DeletionTimestamp = ptr.To(metav1.Now())
			}), "hold Deleting",
		},
		"no MachinePool is made while the Cluster is being deleted": {
			with(observed(pool, 0), func(seen *observation) { seen.machinePools, seen.clusterGoes = nil, true }), "hold NoMachinePool",
		},
		"a paused pool": {
			with(observed(pool, 30, newShardGroup(pool, "b", 4)), func(seen *observation) { seen.paused = "somebody" }), "",
		},
		"a pool that is being deleted": {
			observed(deletingPool("b"), 30, newShardGroup(pool, "b", 4), newShardGroup(pool, "d", 4), deleting(newShardGroup(pool, "e", 4))),
			"remove MachinePool workers, remove b, remove d, hold Deleting",
		},
		"a pool that is being deleted and has nothing left": {
			with(observed(deletingPool("b"), 30), func(seen *observation) { seen.machinePools = nil }), "release, hold Deleting",
		},
		"another template": {changed(func(g *v1beta1.NstanceShardGroup) { g.Spec.Template = "old" }), "change a=3"},
		"another type":     {changed(func(g *v1beta1.NstanceShardGroup) { g.Spec.InstanceType = "" }), "change a=3"},
		"other subnets":    {changed(func(g *v1beta1.NstanceShardGroup) { g.Spec.Subnets = nil }), "change a=3"},
		"other vars":       {changed(func(g *v1beta1.NstanceShardGroup) { g.Spec.Vars = map[string]string{"a": "2"} }), "change a=3"},
		"lost labels":      {changed(func(g *v1beta1.NstanceShardGroup) { g.Labels = nil }), "change a=3"},
		"lost finalizer":   {changed(func(g *v1beta1.NstanceShardGroup) { g.Finalizers = nil }), "change a=3"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d := plan(test.seen)
			if got := told(d); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if d.hold != nil && test.seen.pool.DeletionTimestamp.IsZero() && (d.sizes != nil || len(d.apply)+len(d.remove) > 0) {
				t.Errorf("something is done while it holds: %+v", d)
			}
		})
	}
}

func TestPlanNamesTheCulprits(t *testing.T) {
	pool := newPool("a", "b", "c")
	seen := observed(pool, 3)
	seen.shards[0].configured, seen.shards[2].configured = false, false
	if got, want := plan(seen).hold.message, "spec.shards names shards that are not configured: a, c"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	seen = observed(pool, 3)
	seen.machinePools = []*clusterv1.MachinePool{machinePool("z", nil), machinePool("y", nil)}
	if got, want := plan(seen).hold.message, "2 MachinePools refer to this pool: y, z"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPlanCopiesThePoolsSettings(t *testing.T) {
	pool := newPool("a")
	d := plan(observed(pool, 2))
	got := d.apply[0].spec
	if got.Group != "workers" || got.Shard != "a" || got.Template != "standard" || got.InstanceType != "large" ||
		!slices.Equal(got.Subnets, pool.Spec.Subnets) || got.Vars["a"] != "1" {
		t.Errorf("got %+v", got)
	}
}
