// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/testing/tier"
)

// randomObservation is anything that a sync may see.
func randomObservation(r *rand.Rand) observation {
	chance := func(percent int) bool { return r.IntN(100) < percent }
	observed := observation{group: "main", machinePoolDeleted: chance(10)}
	former := newPool("main", "main", "shard-0")
	for i := range r.IntN(5) {
		state := shardState{id: fmt.Sprintf("shard-%d", i), known: !chance(10)}
		if chance(60) {
			state.group = &shard.Group{
				Key: "main", Size: r.Int32N(10), GroupSettings: shard.GroupSettings{Template: []string{"worker", "other"}[r.IntN(2)]}, Static: chance(30), Deleting: chance(20),
			}
		}
		if chance(10) {
			state.shardGroup = controllertest.NewShardGroup(former, v1beta1.Identifier(state.id))
		}
		observed.shards = append(observed.shards, state)
	}
	r.Shuffle(len(observed.shards), func(i, j int) { observed.shards[i], observed.shards[j] = observed.shards[j], observed.shards[i] })
	for _, name := range []string{"one", "two"} {
		if chance(20) {
			pool := newPool(name, "main", v1beta1.Identifier(fmt.Sprintf("shard-%d", r.IntN(5))))
			if chance(30) {
				controllertest.Deleting(pool)
			}
			observed.pools = append(observed.pools, pool)
		}
	}
	if chance(10) {
		observed.namesake = newPool("main", "another", "shard-0")
	}
	if chance(50) {
		observed.cluster = controllertest.NewCluster()
		if chance(20) {
			controllertest.Deleting(observed.cluster)
		}
		if chance(20) {
			controllertest.PausedCluster(observed.cluster)
		}
	}
	return observed
}

// mustCreate reports whether nothing keeps a group from getting a pool: every shard is
// known, one of them has the group, and nothing is left of a former pool.
func mustCreate(observed observation) bool {
	if len(observed.pools) > 0 || observed.namesake != nil || observed.machinePoolDeleted {
		return false
	}
	if cluster := observed.cluster; cluster != nil && (cluster.DeletionTimestamp != nil || cluster.Spec.Paused != nil && *cluster.Spec.Paused) {
		return false
	}
	found := false
	for _, state := range observed.shards {
		if !state.known || state.shardGroup != nil {
			return false
		}
		found = found || state.group != nil && !state.group.Deleting
	}
	return found
}

// For every observation: a pool is created of all or of nothing, whenever it can be, beside
// no other, and what was made is not made again.
func TestPlanProperties(t *testing.T) {
	for _, seed := range tier.Seeds(t, tier.Pick(1, 4)) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { testPlanProperties(t, rand.New(rand.NewPCG(seed, 0))) })
	}
}

func testPlanProperties(t *testing.T, r *rand.Rand) {
	made := 0
	for range 50_000 {
		observed := randomObservation(r)
		d := plan(observed)
		if d.create != nil && d.warning != nil {
			t.Fatalf("creates and warns: %+v", observed)
		}
		if d.create == nil {
			if mustCreate(observed) {
				t.Fatalf("no pool is made of a group that needs one: %+v", observed)
			}
			continue
		}
		made++
		var have, named []v1beta1.Identifier
		for _, state := range observed.shards {
			if !state.known {
				t.Fatalf("a pool is made before shard %s is known: %+v", state.id, observed)
			}
			if state.group != nil && !state.group.Deleting {
				have = append(have, v1beta1.Identifier(state.id))
			}
		}
		slices.Sort(have)
		named = d.create.Shards
		if len(named) == 0 || !slices.Equal(named, have) {
			t.Fatalf("a pool is made of shards %s and the group is on %s: %+v", named, have, observed)
		}
		if len(observed.pools) > 0 || observed.namesake != nil {
			t.Fatalf("a pool is made beside another: %+v", observed)
		}
		if observed.machinePoolDeleted || observed.cluster != nil && (observed.cluster.DeletionTimestamp != nil || observed.cluster.Spec.Paused != nil) {
			t.Fatalf("a pool is created that is blocked: %+v", observed)
		}
		for _, state := range observed.shards {
			if d.create.Template != "" && state.group != nil && !state.group.Deleting &&
				(state.group.Static || state.group.Template != d.create.Template) {
				t.Fatalf("template %q is not that of shard %s: %+v", d.create.Template, state.id, observed)
			}
		}

		pool := newPool("main", "main")
		pool.Spec = *d.create
		observed.pools = []*v1beta1.NstanceMachinePool{pool}
		if again := describe(plan(observed)); again != "" {
			t.Fatalf("decided %q after it was carried out: %+v", again, observed)
		}
	}
	if made < 500 {
		t.Errorf("made only %d pools; the observations are of no use", made)
	}
}
