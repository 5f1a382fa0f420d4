// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"fmt"
	"testing"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

// describe returns a decision in words.
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
	on := func(id string, group shard.Group) shardState { return shardState{id: id, known: true, group: &group} }
	empty := func(id string) shardState { return shardState{id: id, known: true} }
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
		"one shard is not known, of those that have it": {
			observation{shards: []shardState{{id: "a", group: on("a", static(1)).group}, on("b", static(2))}}, ""},
		"one shard is not known, which may have it": {
			observation{shards: []shardState{{id: "a"}, on("b", static(2))}}, ""},

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
		"an unknown shard keeps from warning too": {
			observation{shards: []shardState{on("b", static(1)), {id: "c"}}, pools: []*v1beta1.NstanceMachinePool{pool}}, ""},
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

func TestImportedPoolSaysNoMoreThanItMust(t *testing.T) {
	group := dynamic("worker")
	spec := plan(observation{group: "main", shards: []shardState{{id: "a", known: true, group: &group}}}).create
	if spec == nil {
		t.Fatal("nothing is created")
	}
	if spec.InstanceType != "" || spec.Subnets != nil || spec.Vars != nil || spec.ProviderIDList != nil {
		t.Errorf("the pool pins what the server has merged: %+v", spec)
	}
}
