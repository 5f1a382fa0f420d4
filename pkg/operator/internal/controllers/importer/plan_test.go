// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/testing/tier"
)

// describe returns a decision as text.
func describe(d decision) string {
	switch {
	case d.create != nil && d.warning != nil:
		return "creates and warns"
	case d.create != nil:
		words := fmt.Sprintf("create %s on %s", d.create.Group, d.create.Shards)
		if d.create.Template != "" {
			words += " of " + d.create.Template
		}
		return words
	case d.warning != nil:
		return fmt.Sprintf("warn %s: %s: %s", d.warning.pool.Name, d.warning.reason, d.warning.message)
	default:
		return ""
	}
}

func TestPlan(t *testing.T) {
	on := func(id string, group shard.Group) shardState { return shardState{id: id, group: &group} }
	empty := func(id string) shardState { return shardState{id: id} }
	with := func(state shardState, shardGroup *v1beta1.NstanceShardGroup) shardState {
		state.shardGroup = shardGroup
		return state
	}
	pool := newPool("main", "main", "a")
	unowned := controllertest.NewShardGroup(pool, "a")
	unowned.OwnerReferences = nil
	tests := map[string]struct {
		observed observation
		want     string
	}{
		"no shard is configured": {observation{}, ""},
		"no shard has the group": {observation{shards: []shardState{empty("a"), empty("b")}}, ""},
		"the shards that have it are named by id": {
			observation{shards: []shardState{on("c", static(1)), empty("b"), on("a", static(2))}}, "create main on [a c]"},
		"a group that is being deleted is no group": {
			observation{shards: []shardState{on("a", deleting(dynamic("worker")))}}, ""},
		"it does not count beside one that stays": {
			observation{shards: []shardState{on("a", deleting(dynamic("worker"))), on("b", dynamic("other"))}}, "create main on [b] of other"},

		"a dynamic group has a template": {
			observation{shards: []shardState{on("a", dynamic("worker")), on("b", dynamic("worker"))}}, "create main on [a b] of worker"},
		"one that the shards do not agree on is left out": {
			observation{shards: []shardState{on("a", dynamic("worker")), on("b", dynamic("other"))}}, "create main on [a b]"},
		"a group that is static somewhere has none": {
			observation{shards: []shardState{on("a", dynamic("server")), on("b", static(1))}}, "create main on [a b]"},

		"the group has a pool": {
			observation{shards: []shardState{on("a", static(1))}, pools: []*v1beta1.NstanceMachinePool{pool}}, ""},
		"its pool has another name": {
			observation{shards: []shardState{on("a", static(1))}, pools: []*v1beta1.NstanceMachinePool{newPool("other", "main", "a")}}, ""},
		"its pool is being deleted": {
			observation{shards: []shardState{on("a", static(1)), on("b", static(1))}, pools: []*v1beta1.NstanceMachinePool{controllertest.Deleting(pool.DeepCopy())}}, ""},
		"its pool does not name all of its shards": {
			observation{shards: []shardState{on("c", static(1)), on("b", static(1)), on("a", static(1))}, pools: []*v1beta1.NstanceMachinePool{pool}},
			`warn main: ShardNotListed: group "main" is also on shards that spec.shards does not name: b, c`},
		"the shard not named only just deletes it": {
			observation{shards: []shardState{on("a", static(1)), on("b", deleting(dynamic("worker")))}, pools: []*v1beta1.NstanceMachinePool{pool}}, ""},
		"the shard not named was named until now": {
			observation{shards: []shardState{on("a", static(1)), with(on("b", static(1)), controllertest.NewShardGroup(pool, "b"))}, pools: []*v1beta1.NstanceMachinePool{pool}}, ""},
		"of two pools each names a shard": {
			observation{shards: []shardState{on("a", static(1)), on("b", static(1))}, pools: []*v1beta1.NstanceMachinePool{pool, newPool("other", "main", "b")}}, ""},
		"of two pools the one that stays is warned": {
			observation{shards: []shardState{on("c", static(1))}, pools: []*v1beta1.NstanceMachinePool{controllertest.Deleting(pool.DeepCopy()), newPool("other", "main", "b")}},
			`warn other: ShardNotListed: group "main" is also on shards that spec.shards does not name: c`},

		"another group's pool has the name": {
			observation{shards: []shardState{on("a", static(1))}, namesake: newPool("main", "workers", "a")},
			`warn main: NameTaken: group "main" on the shards gets no pool, because the pool of that name has group "workers"`},
		"another group's pool has the name and is being deleted": {
			observation{shards: []shardState{on("a", static(1))}, namesake: controllertest.Deleting(newPool("main", "workers", "a"))}, ""},
		"another group's pool has the name, but it has a pool": {
			observation{shards: []shardState{on("a", static(1))}, namesake: newPool("main", "workers", "a"), pools: []*v1beta1.NstanceMachinePool{newPool("other", "main", "a")}}, ""},
		"another group's pool has the name, but no shard has the group": {
			observation{shards: []shardState{empty("a")}, namesake: newPool("main", "workers", "a")}, ""},

		"a MachinePool would take the pool along": {
			observation{shards: []shardState{on("a", static(1))}, machinePoolDeleted: true}, ""},
		"there is a Cluster": {
			observation{shards: []shardState{on("a", static(1))}, cluster: controllertest.NewCluster()}, "create main on [a]"},
		"the Cluster is being deleted": {
			observation{shards: []shardState{on("a", static(1))}, cluster: controllertest.Deleting(controllertest.NewCluster())}, ""},
		"the Cluster is paused": {
			observation{shards: []shardState{on("a", static(1))}, cluster: controllertest.PausedCluster(controllertest.NewCluster())}, ""},
		"a former pool has left a shard group": {
			observation{shards: []shardState{with(on("a", dynamic("worker")), controllertest.NewShardGroup(pool, "a"))}}, ""},
		"a former pool has a shard group where the group was deleted": {
			observation{shards: []shardState{on("a", dynamic("worker")), with(empty("b"), controllertest.NewShardGroup(pool, "b"))}}, ""},
		"a shard group of no pool is being deleted": {
			observation{shards: []shardState{with(on("a", static(1)), controllertest.Deleting(unowned.DeepCopy()))}}, ""},
		"a shard group of no pool stays": {
			observation{shards: []shardState{with(on("a", static(1)), unowned)}}, "create main on [a]"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			test.observed.group = "main"
			if got := describe(plan(test.observed)); got != test.want {
				t.Errorf("got  %q,\nwant %q", got, test.want)
			}
		})
	}
}

func TestImportedPoolOmitsDefaults(t *testing.T) {
	group := dynamic("worker")
	spec := plan(observation{group: "main", shards: []shardState{{id: "a", group: &group}}}).create
	if spec == nil {
		t.Fatal("nothing is created")
	}
	if spec.InstanceType != "" || spec.Subnets != nil || spec.Vars != nil || spec.ProviderIDList != nil {
		t.Errorf("the pool pins what the server has merged: %+v", spec)
	}
}

// The rotation of a group that a former pool has bounded is paused, if one of the shards knows it.
func TestTheRotationOfAnImportedPool(t *testing.T) {
	free, bounded := dynamic("worker"), dynamic("worker")
	bounded.Rotation = &shard.RotationGrant{}
	for name, test := range map[string]struct {
		groups []shard.Group
		paused bool
	}{
		"no grant": {[]shard.Group{free, free}, false},
		"a grant":  {[]shard.Group{free, bounded}, true},
	} {
		observed := observation{group: "main"}
		for n := range test.groups {
			observed.shards = append(observed.shards, shardState{id: fmt.Sprint("shard-", n), group: &test.groups[n]})
		}
		spec := plan(observed).create
		require.NotNil(t, spec, name)
		assert.Equal(t, test.paused, spec.Rotation != nil && *spec.Rotation.Paused, name)
	}
}

// randomObservation returns an arbitrary observation.
func randomObservation(r *rand.Rand) observation {
	chance := func(percent int) bool { return r.IntN(100) < percent }
	observed := observation{group: "main", machinePoolDeleted: chance(10)}
	former := newPool("main", "main", "shard-0")
	for i := range r.IntN(5) {
		state := shardState{id: fmt.Sprintf("shard-%d", i)}
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

// mustCreate reports whether the group must get a pool: a shard has the group, and no object of a
// former pool exists.
func mustCreate(observed observation) bool {
	if len(observed.pools) > 0 || observed.namesake != nil || observed.machinePoolDeleted {
		return false
	}
	if cluster := observed.cluster; cluster != nil && (cluster.DeletionTimestamp != nil || cluster.Spec.Paused != nil && *cluster.Spec.Paused) {
		return false
	}
	found := false
	for _, state := range observed.shards {
		if state.shardGroup != nil {
			return false
		}
		found = found || state.group != nil && !state.group.Deleting
	}
	return found
}

// For every observation: if a pool can be created, it is created on all shards of the group;
// there is never a second pool, and a pool is not created again.
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

// The pool of a retained group has the settings of the former pool: without them the shards
// would replace the instances.
func TestImportHasTheDeclaredSettings(t *testing.T) {
	declared := shard.GroupSettings{Template: "worker", InstanceType: "huge", Subnets: []string{"public"}, Vars: map[string]string{"b": "2"}}
	other := declared
	other.Vars = nil
	with := func(group shard.Group, settings *shard.GroupSettings) *shard.Group {
		group.Declared = settings
		return &group
	}
	for name, test := range map[string]struct {
		a, b *shard.Group
		want v1beta1.GroupSettings
	}{
		"the same on all shards": {with(dynamic("worker"), &declared), with(dynamic("worker"), &declared),
			v1beta1.GroupSettings{Template: "worker", InstanceType: "huge", Subnets: []v1beta1.Identifier{"public"}, Vars: map[string]string{"b": "2"}}},
		"different ones":          {with(dynamic("worker"), &declared), with(dynamic("worker"), &other), v1beta1.GroupSettings{Template: "worker"}},
		"none":                    {with(dynamic("worker"), &shard.GroupSettings{}), with(dynamic("worker"), &shard.GroupSettings{}), v1beta1.GroupSettings{Template: "worker"}},
		"one server reports none": {with(dynamic("worker"), &declared), with(dynamic("worker"), nil), v1beta1.GroupSettings{Template: "worker"}},
		"a static group": {with(static(1), &declared), with(static(1), &declared),
			v1beta1.GroupSettings{InstanceType: "huge", Vars: map[string]string{"b": "2"}}},
	} {
		t.Run(name, func(t *testing.T) {
			d := plan(observation{group: "main", shards: []shardState{{id: "a", group: test.a}, {id: "b", group: test.b}}})
			assert.Equal(t, test.want, d.create.GroupSettings)
		})
	}
}

// Shares of a maximum differ among shards, and are no other setting. What the API server rejects is
// left out.
func TestImportHasTheDeclaredCandidates(t *testing.T) {
	with := func(vars map[string]string, most int32, candidates ...shard.Candidate) *shard.Group {
		group := dynamic("worker")
		group.Declared = &shard.GroupSettings{Template: "worker", InstanceType: "huge", Vars: vars, ReturnAfterSeconds: 600}
		if most > 0 {
			group.Declared.Candidates = append([]shard.Candidate{{Name: "base", Market: "Standard", MaxInstances: &most}}, candidates...)
		}
		return &group
	}
	spot, large := shard.Candidate{Name: "rest", Market: "Spot"}, shard.Candidate{Name: "rest", Market: "Spot", InstanceType: "large"}
	vars := map[string]string{"a": "1"}
	imported := []v1beta1.Candidate{
		{Name: "base", Market: v1beta1.MarketStandard, MaxReplicas: ptr.To(intstr.FromInt32(3))}, {Name: "rest", Market: v1beta1.MarketSpot},
	}
	for name, test := range map[string]struct {
		a, b       *shard.Group
		want       v1beta1.GroupSettings
		candidates []v1beta1.Candidate
	}{
		"other shares":  {with(vars, 2, spot), with(vars, 1, spot), v1beta1.GroupSettings{Template: "worker", Vars: vars, ReturnAfterSeconds: 600}, imported},
		"another type":  {with(vars, 2, spot), with(vars, 1, large), v1beta1.GroupSettings{Template: "worker"}, nil},
		"other vars":    {with(vars, 2, spot), with(nil, 1, spot), v1beta1.GroupSettings{Template: "worker"}, nil},
		"no candidates": {with(vars, 0), with(vars, 0), v1beta1.GroupSettings{Template: "worker", InstanceType: "huge", Vars: vars}, nil},
		"one has some":  {with(vars, 0), with(vars, 1, spot), v1beta1.GroupSettings{Template: "worker"}, nil},
	} {
		created := plan(observation{group: "main", shards: []shardState{{id: "a", group: test.a}, {id: "b", group: test.b}}}).create
		assert.Equal(t, test.want, created.GroupSettings, name)
		assert.Equal(t, test.candidates, created.Candidates, name)
	}
}
