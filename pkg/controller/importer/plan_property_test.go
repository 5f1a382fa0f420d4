// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

// randomObservation is anything that a sync may see.
func randomObservation(r *rand.Rand) observation {
	chance := func(percent int) bool { return r.IntN(100) < percent }
	seen := observation{group: "main", takenAlong: chance(10)}
	former := newPool("main", "main", "shard-0")
	for i := range r.IntN(5) {
		state := shardState{id: fmt.Sprintf("shard-%d", i), known: !chance(10)}
		if chance(60) {
			state.group = &shard.Group{
				Key: "main", Size: r.Int32N(10), Template: []string{"worker", "other"}[r.IntN(2)], Static: chance(30), Deleting: chance(20),
			}
		}
		if chance(10) {
			state.shardGroup = newShardGroup(former, v1beta1.Identifier(state.id))
		}
		seen.shards = append(seen.shards, state)
	}
	r.Shuffle(len(seen.shards), func(i, j int) { seen.shards[i], seen.shards[j] = seen.shards[j], seen.shards[i] })
	for _, name := range []string{"one", "two"} {
		if chance(20) {
			pool := newPool(name, "main", v1beta1.Identifier(fmt.Sprintf("shard-%d", r.IntN(5))))
			if chance(30) {
				leaving(pool)
			}
			seen.pools = append(seen.pools, pool)
		}
	}
	if chance(10) {
		seen.namesake = newPool("main", "another", "shard-0")
	}
	if chance(50) {
		seen.cluster = newCluster(clusterName)
		if chance(20) {
			leaving(seen.cluster)
		}
		if chance(20) {
			paused(seen.cluster)
		}
	}
	return seen
}

// Whatever is seen: a pool is made of all or of nothing, beside no other, and
// what was made is not made again.
func TestPlanProperties(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	made := 0
	for range 50_000 {
		seen := randomObservation(r)
		d := plan(seen)
		if d.create != nil && d.warning != nil {
			t.Fatalf("creates and warns: %+v", seen)
		}
		if d.create == nil {
			continue
		}
		made++
		var have, named []v1beta1.Identifier
		for _, state := range seen.shards {
			if !state.known {
				t.Fatalf("a pool is made before shard %s is known: %+v", state.id, seen)
			}
			if state.group != nil && !state.group.Deleting {
				have = append(have, v1beta1.Identifier(state.id))
			}
		}
		slices.Sort(have)
		named = d.create.Shards
		if len(named) == 0 || !slices.Equal(named, have) {
			t.Fatalf("a pool is made of shards %s and the group is on %s: %+v", named, have, seen)
		}
		if len(seen.pools) > 0 || seen.namesake != nil {
			t.Fatalf("a pool is made beside another: %+v", seen)
		}
		if seen.takenAlong || seen.cluster != nil && (seen.cluster.DeletionTimestamp != nil || seen.cluster.Spec.Paused != nil) {
			t.Fatalf("a pool is made that is held up: %+v", seen)
		}
		for _, state := range seen.shards {
			if d.create.Template != "" && state.group != nil && !state.group.Deleting &&
				(state.group.Static || state.group.Template != d.create.Template) {
				t.Fatalf("template %q is not that of shard %s: %+v", d.create.Template, state.id, seen)
			}
		}

		pool := newPool("main", "main")
		pool.Spec = *d.create
		seen.pools = []*v1beta1.NstanceMachinePool{pool}
		if again := told(plan(seen)); again != "" {
			t.Fatalf("decided %q after it was carried out: %+v", again, seen)
		}
	}
	if made < 500 {
		t.Errorf("made only %d pools; the observations are of no use", made)
	}
}
