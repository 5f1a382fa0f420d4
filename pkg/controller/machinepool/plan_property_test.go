// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"math/rand/v2"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// randomObservation is anything that a sync may see.
func randomObservation(r *rand.Rand) observation {
	chance := func(percent int) bool { return r.IntN(100) < percent }
	pool := newPool()
	stranger := newPool()
	stranger.Name, stranger.UID = "stranger", "uid-stranger"
	seen := observation{pool: pool, namesake: chance(10), clusterGoes: chance(10)}
	if chance(5) {
		seen.paused = "somebody"
	}
	newcomer := chance(30)
	for i := range 1 + r.IntN(5) {
		id := fmt.Sprintf("shard-%d", i)
		pool.Spec.Shards = append(pool.Spec.Shards, v1beta1.Identifier(id))
		state := shardState{id: id, configured: !chance(10), synced: !chance(20), size: r.Int32N(20)}
		if !newcomer && !chance(25) {
			owner := pool
			if chance(5) {
				owner = stranger
			}
			state.group = newShardGroup(owner, id, r.Int32N(20))
			state.group.Spec.Template = []string{"standard", "old"}[r.IntN(2)]
			if chance(5) {
				state.group.DeletionTimestamp = ptr.To(metav1.Now())
			}
			if owner == pool {
				seen.owned = append(seen.owned, state.group)
			}
		}
		seen.shards = append(seen.shards, state)
	}
	if chance(20) {
		seen.owned = append(seen.owned, newShardGroup(pool, "removed", r.Int32N(20)))
	}
	for i := range []int{0, 1, 1, 1, 1, 1, 2}[r.IntN(7)] {
		replicas := ptr.To(r.Int32N(50))
		if chance(20) {
			replicas = nil
		}
		made := machinePool(fmt.Sprintf("workers-%d", i), replicas)
		if chance(20) {
			unasked(made)
		}
		if chance(5) {
			made.DeletionTimestamp = ptr.To(metav1.Now())
		}
		seen.machinePools = append(seen.machinePools, made)
	}
	if newcomer && len(seen.machinePools) == 1 && chance(50) {
		// As many as there are.
		seen.machinePools[0].Spec.Replicas = ptr.To(sum(presentSizes(seen.shards)))
	}
	return seen
}

// carriedOut is what the next sync sees when everything decided was done.
func carriedOut(seen observation, d decision) observation {
	if d.create != nil {
		seen.machinePools = []*clusterv1.MachinePool{machinePool("workers", d.create)}
	}
	if d.raise != nil {
		seen.machinePools = []*clusterv1.MachinePool{machinePool(seen.machinePools[0].Name, d.raise)}
	}
	for i, shard := range seen.shards {
		for _, want := range d.apply {
			if string(want.spec.Shard) != shard.id {
				continue
			}
			seen.shards[i].group = newShardGroup(seen.pool, shard.id, want.spec.Size)
			if want.kept != "" {
				seen.shards[i].group.Annotations = map[string]string{v1beta1.AnnotationKept: want.kept}
			}
		}
	}
	seen.owned = nil
	for _, shard := range seen.shards {
		if shard.group != nil && metav1.IsControlledBy(shard.group, seen.pool) {
			seen.owned = append(seen.owned, shard.group)
		}
	}
	return seen
}

// Whatever is seen: no size falls, and no group goes, without one number of
// replicas that somebody has set, and what has been carried out is not decided
// again.
func TestPlanProperties(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	for range 20_000 {
		seen := randomObservation(r)
		d := plan(seen)
		number := len(seen.machinePools) == 1 && seen.machinePools[0].Spec.Replicas != nil
		before := map[v1beta1.Identifier]int32{}
		for _, shard := range seen.shards {
			if shard.group != nil {
				before[shard.group.Spec.Shard] = shard.group.Spec.Size
			}
		}
		var sum int32
		for _, size := range d.sizes {
			sum += size
		}
		if seen.paused != "" {
			if told(d) != "" {
				t.Fatalf("decided %q while it is paused: %+v", told(d), seen)
			}
			continue
		}
		if number && d.sizes != nil && sum != *seen.machinePools[0].Spec.Replicas {
			t.Fatalf("%d replicas are wanted and %d spread: %+v", *seen.machinePools[0].Spec.Replicas, sum, seen)
		}
		for _, want := range d.apply {
			if !number {
				t.Fatalf("shard %s gets size %d in place of %d without a number: %+v", want.spec.Shard, want.spec.Size, before[want.spec.Shard], seen)
			}
		}
		if !number && len(d.remove) > 0 {
			t.Fatalf("%d groups are removed without a number: %+v", len(d.remove), seen)
		}
		if d.create != nil {
			var there int32
			for _, shard := range seen.shards {
				if !shard.synced || !shard.configured {
					t.Fatalf("a MachinePool is made before shard %s was read: %+v", shard.id, seen)
				}
				if shard.group != nil {
					there += shard.group.Spec.Size
				} else {
					there += shard.size
				}
			}
			if *d.create != there {
				t.Fatalf("a MachinePool is made with %d replicas and there are %d: %+v", *d.create, there, seen)
			}
		}

		// One step for a number of replicas, one to spread it, and one more when
		// that shows that nobody asked for so few.
		next, again := seen, d
		for range 4 {
			next = carriedOut(next, again)
			again = plan(next)
		}
		if again.create != nil || again.raise != nil || len(again.apply)+len(again.remove) > 0 {
			t.Fatalf("decided %q after it was carried out: %+v", told(again), next)
		}
	}
}

// Whoever makes the MachinePool, and wherever the operator is killed meanwhile:
// taking over what shards have ends nothing there, as long as nobody asks for
// another number.
func TestTakingOverEndsNothing(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	for range 20_000 {
		pool := newPool()
		seen := observation{pool: pool}
		for i := range 1 + r.IntN(4) {
			id := fmt.Sprintf("shard-%d", i)
			pool.Spec.Shards = append(pool.Spec.Shards, v1beta1.Identifier(id))
			seen.shards = append(seen.shards, shardState{id: id, configured: true, synced: true, size: r.Int32N(6)})
		}
		found := sum(presentSizes(seen.shards))
		switch r.IntN(3) {
		case 0:
			seen.machinePools = []*clusterv1.MachinePool{machinePool("workers", &found)}
		case 1:
			seen.machinePools = []*clusterv1.MachinePool{unasked(machinePool("workers", ptr.To(min(1, found))))}
		}
		steps := 0
		for d := plan(seen); d.create != nil || d.raise != nil || len(d.apply) > 0; d = plan(seen) {
			if steps++; steps > 20 {
				t.Fatalf("no end: %q of %+v", told(d), seen)
			}
			// Some of it was written when the operator was killed.
			d.apply = d.apply[:min(len(d.apply), 1+r.IntN(4))]
			for _, want := range d.apply {
				for _, shard := range seen.shards {
					if shard.id == string(want.spec.Shard) && want.spec.Size < shard.size {
						t.Fatalf("shard %s has %d instances and gets size %d: %+v", shard.id, shard.size, want.spec.Size, seen)
					}
				}
			}
			seen = carriedOut(seen, d)
		}
		if got := sum(presentSizes(seen.shards)); got != found || *seen.machinePools[0].Spec.Replicas != found {
			t.Fatalf("%d replicas and sizes %v of %d: %+v", *seen.machinePools[0].Spec.Replicas, presentSizes(seen.shards), found, seen)
		}
	}
}
