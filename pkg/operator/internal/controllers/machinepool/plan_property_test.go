// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/distribute"
	"nstance.dev/operator/pkg/testing/tier"
)

// randomObservation returns an observation that a sync may make.
func randomObservation(r *rand.Rand) observation {
	chance := func(percent int) bool { return r.IntN(100) < percent }
	pool := newPool()
	otherPool := newPool()
	otherPool.Name, otherPool.UID = "other", "uid-other"
	seen := observation{pool: pool, nameTaken: chance(10), clusterDeleting: chance(10)}
	if chance(5) {
		seen.paused = "the pool"
	}
	if chance(30) {
		pool.Spec.InstanceType = ""
		pool.Spec.Candidates = []v1beta1.Candidate{
			{Name: "base", MaxReplicas: ptr.To(intstr.FromInt32(r.Int32N(20)))},
			{Name: "spot", Market: v1beta1.MarketSpot, MaxReplicas: ptr.To(intstr.FromString(fmt.Sprintf("%d%%", r.IntN(101))))},
			{Name: "rest"},
		}
	}
	newcomer := chance(30)
	for i := range 1 + r.IntN(5) {
		id := fmt.Sprintf("shard-%d", i)
		pool.Spec.Shards = append(pool.Spec.Shards, v1beta1.Identifier(id))
		state := shardState{id: id, configured: !chance(10), synced: !chance(20), size: r.Int32N(20)}
		if !newcomer && !chance(25) {
			owner := pool
			if chance(5) {
				owner = otherPool
			}
			state.group = newShardGroup(owner, id, r.Int32N(20))
			state.group.Spec.Candidates = writtenCandidates(r, pool)
			state.group.Spec.Template = []string{"standard", "old"}[r.IntN(2)]
			if chance(5) {
				state.group.DeletionTimestamp = ptr.To(metav1.Now())
			}
			if chance(20) {
				state.group.Status.MinReplicas = ptr.To(1 + r.Int32N(4))
			}
			if owner == pool {
				seen.shardGroups = append(seen.shardGroups, state.group)
			}
		}
		seen.shards = append(seen.shards, state)
	}
	if chance(20) {
		seen.shardGroups = append(seen.shardGroups, newShardGroup(pool, "removed", r.Int32N(20)))
	}
	for i := range []int{0, 1, 1, 1, 1, 1, 2}[r.IntN(7)] {
		replicas := ptr.To(r.Int32N(50))
		if chance(20) {
			replicas = nil
		}
		made := machinePool(fmt.Sprintf("workers-%d", i), replicas)
		if chance(20) {
			withDefaultReplicas(made)
		}
		if chance(5) {
			made.DeletionTimestamp = ptr.To(metav1.Now())
		}
		seen.machinePools = append(seen.machinePools, made)
	}
	if newcomer && len(seen.machinePools) == 1 && chance(50) {
		// As many as there are.
		seen.machinePools[0].Spec.Replicas = ptr.To(distribute.Total(sizesOf(seen)))
	}
	return seen
}

// writtenCandidates returns the candidates that an earlier sync may have written.
func writtenCandidates(r *rand.Rand, pool *v1beta1.NstanceMachinePool) (written []v1beta1.ShardCandidate) {
	for _, candidate := range pool.Spec.Candidates {
		of := v1beta1.ShardCandidate{Name: candidate.Name, Market: candidate.Market}
		if candidate.MaxReplicas != nil {
			of.MaxReplicas = ptr.To(r.Int32N(20))
		}
		if r.IntN(10) > 0 {
			written = append(written, of)
		}
	}
	return written
}

// carriedOut returns the observation of the next sync after everything was done.
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
			if shard.group != nil {
				seen.shards[i].group.Status = shard.group.Status
			}
			seen.shards[i].group.Spec.Imported = want.spec.Imported
			seen.shards[i].group.Spec.Candidates = want.spec.Candidates
		}
	}
	seen.shardGroups = nil
	for _, shard := range seen.shards {
		if shard.group != nil && metav1.IsControlledBy(shard.group, seen.pool) {
			seen.shardGroups = append(seen.shardGroups, shard.group)
		}
	}
	return seen
}

// For all observations: no size is lowered and no group deleted without one explicit
// number of replicas, and a decision that was carried out is not repeated.
func TestPlanProperties(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(1, 4)) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { testPlanProperties(t, rand.New(rand.NewPCG(seed, 0))) })
	}
}

func testPlanProperties(t *testing.T, r *rand.Rand) {
	for range 20_000 {
		seen := randomObservation(r)
		d := planOf(seen)
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
			if describe(d) != "" {
				t.Fatalf("decided %q while it is paused: %+v", describe(d), seen)
			}
			continue
		}
		var fixed, variable, least int32
		current := sizesOf(seen)
		for i, shard := range seen.shards {
			switch {
			case shard.configured:
				variable++
				least += shard.minSize()
				if d.sizes != nil && d.sizes[i] < shard.minSize() {
					t.Fatalf("shard %s keeps %d instances and gets size %d: %+v", shard.id, shard.minSize(), d.sizes[i], seen)
				}
			case d.sizes != nil && d.sizes[i] != current[i]:
				t.Fatalf("shard %s is not configured and gets size %d: %+v", shard.id, d.sizes[i], seen)
			default:
				fixed += current[i]
			}
		}
		if number && d.sizes != nil {
			wanted := max(*seen.machinePools[0].Spec.Replicas, fixed+least)
			if variable > 0 && sum != wanted {
				t.Fatalf("%d replicas are wanted and %d spread: %+v", wanted, sum, seen)
			}
		}
		for _, want := range d.apply {
			at := slices.IndexFunc(seen.shards, func(s shardState) bool { return s.id == string(want.spec.Shard) })
			for _, candidate := range want.spec.Candidates {
				if share := ptr.Deref(candidate.MaxReplicas, 0); share > want.spec.Size && seen.shards[at].configured {
					t.Fatalf("shard %s gets a share of %d of its size %d: %+v", want.spec.Shard, share, want.spec.Size, seen)
				}
			}
			if !number {
				t.Fatalf("shard %s gets size %d in place of %d without a number: %+v", want.spec.Shard, want.spec.Size, before[want.spec.Shard], seen)
			}
		}
		if !number && len(d.deleteShardGroups) > 0 {
			t.Fatalf("%d groups are removed without a number: %+v", len(d.deleteShardGroups), seen)
		}
		if d.create != nil {
			var there int32
			for _, shard := range seen.shards {
				if !shard.synced || !shard.configured {
					t.Fatalf("a MachinePool is created before shard %s was read: %+v", shard.id, seen)
				}
				if shard.group != nil {
					there += max(shard.group.Spec.Size, shard.minSize())
				} else {
					there += shard.size
				}
			}
			if *d.create != there {
				t.Fatalf("a MachinePool is created with %d replicas and there are %d: %+v", *d.create, there, seen)
			}
		}

		// A step for a number of replicas, a step to divide it, and one more when
		// that shows that the replicas were a default.
		next, again := seen, d
		for range 4 {
			next = carriedOut(next, again)
			again = planOf(next)
		}
		if again.create != nil || again.raise != nil || len(again.apply)+len(again.deleteShardGroups) > 0 {
			t.Fatalf("decided %q after it was carried out: %+v", describe(again), next)
		}
	}
}

// With every MachinePool, and with crashes of the operator: an import terminates no
// instance, as long as the replicas do not change.
func TestImportTerminatesNothing(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(1, 4)) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { testImportTerminatesNothing(t, rand.New(rand.NewPCG(seed, 0))) })
	}
}

func testImportTerminatesNothing(t *testing.T, r *rand.Rand) {
	for range 20_000 {
		pool := newPool()
		seen := observation{pool: pool}
		for i := range 1 + r.IntN(4) {
			id := fmt.Sprintf("shard-%d", i)
			pool.Spec.Shards = append(pool.Spec.Shards, v1beta1.Identifier(id))
			seen.shards = append(seen.shards, shardState{id: id, configured: true, synced: true, size: r.Int32N(6)})
		}
		found := distribute.Total(sizesOf(seen))
		switch r.IntN(3) {
		case 0:
			seen.machinePools = []*clusterv1.MachinePool{machinePool("workers", &found)}
		case 1:
			seen.machinePools = []*clusterv1.MachinePool{withDefaultReplicas(machinePool("workers", ptr.To(min(1, found))))}
		}
		steps := 0
		for d := planOf(seen); d.create != nil || d.raise != nil || len(d.apply) > 0; d = planOf(seen) {
			if steps++; steps > 20 {
				t.Fatalf("no end: %q of %+v", describe(d), seen)
			}
			// The operator crashed after some of the writes.
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
		if got := distribute.Total(sizesOf(seen)); got != found || *seen.machinePools[0].Spec.Replicas != found {
			t.Fatalf("%d replicas and sizes %v of %d: %+v", *seen.machinePools[0].Spec.Replicas, sizesOf(seen), found, seen)
		}
	}
}
