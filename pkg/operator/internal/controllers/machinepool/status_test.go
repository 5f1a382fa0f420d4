// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// statusOf is the status after a sync that saw this.
func statusOf(seen observation) v1beta1.NstanceMachinePoolStatus {
	return newStatus(seen.pool, seen, planOf(seen), nil)
}

func TestStatusConditions(t *testing.T) {
	pool := newPool("a", "b")
	tests := map[string]struct {
		seen                     observation
		ready, reason, message   string
		reachable, reachedReason string
	}{
		"every shard runs what is wanted": {
			observed(pool, 5, ready(newShardGroup(pool, "a", 3)), ready(newShardGroup(pool, "b", 2))),
			"True", "Ready", "", "True", "Reachable",
		},
		"nothing is wanted and nothing runs": {
			observed(pool, 0, ready(newShardGroup(pool, "a", 0)), ready(newShardGroup(pool, "b", 0))),
			"True", "Ready", "", "True", "Reachable",
		},
		"there are no shard groups yet": {
			observed(pool, 5),
			"False", "Scaling", "not every shard runs the wanted number of instances yet", "Unknown", "NotSynced",
		},
		"a shard scales": {
			observed(pool, 5, ready(newShardGroup(pool, "a", 3)), notReady(newShardGroup(pool, "b", 2), "Scaling", "1 of 2 instances run")),
			"False", "Scaling", "not every shard runs the wanted number of instances yet", "True", "Reachable",
		},
		"a shard was not sent the new size": {
			observed(pool, 9, ready(newShardGroup(pool, "a", 3)), ready(newShardGroup(pool, "b", 2))),
			"False", "Scaling", "not every shard runs the wanted number of instances yet", "True", "Reachable",
		},
		"a shard's report is older than its spec": {
			observed(pool, 5, ready(newShardGroup(pool, "a", 3)), func() *v1beta1.NstanceShardGroup {
				group := ready(newShardGroup(pool, "b", 2))
				group.Generation++
				return group
			}()),
			"False", "Scaling", "not every shard runs the wanted number of instances yet", "True", "Reachable",
		},
		"a rejection has priority over another shard's scaling": {
			observed(pool, 5, notReady(newShardGroup(pool, "a", 3), "Scaling", "1 of 3 instances run"),
				notReady(newShardGroup(pool, "b", 2), "ConfigRejected", "no such template")),
			"False", "ConfigRejected", "b: no such template", "True", "Reachable",
		},
		"a shard has a newer revision": {
			observed(pool, 5, ready(newShardGroup(pool, "a", 3)), notReady(newShardGroup(pool, "b", 2), "ShardAhead", "the shard has size 9")),
			"False", "ShardAhead", "b: the shard has size 9", "True", "Reachable",
		},
		"a shard is unreachable": {
			observed(pool, 5, away(ready(newShardGroup(pool, "a", 3))), ready(newShardGroup(pool, "b", 2))),
			"False", "ShardUnreachable", "a: connection refused", "False", "ShardUnreachable",
		},
		"a shard with instances is not configured any more": {
			func() observation {
				b := newShardGroup(pool, "b", 2)
				ready(b)
				condition(b, v1beta1.ConditionReady, metav1.ConditionFalse, "UnknownShard", `shard "b" is not configured`)
				seen := observed(pool, 5, ready(newShardGroup(pool, "a", 3)), b)
				seen.shards[1].configured = false
				return seen
			}(),
			"False", "UnknownShard", `b: shard "b" is not configured`, "False", "UnknownShard",
		},
		"a shard is not configured": {
			func() observation {
				seen := observed(pool, 5, ready(newShardGroup(pool, "a", 3)))
				seen.shards[1].configured = false
				return seen
			}(),
			"False", "UnknownShard", "spec.shards names shards that are not configured: b", "False", "UnknownShard",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			status := statusOf(test.seen)
			got := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionReady)
			if string(got.Status) != test.ready || got.Reason != test.reason || got.Message != test.message {
				t.Errorf("Ready is %s, %s, %q; want %s, %s, %q", got.Status, got.Reason, got.Message, test.ready, test.reason, test.message)
			}
			got = meta.FindStatusCondition(status.Conditions, v1beta1.ConditionShardsReachable)
			if string(got.Status) != test.reachable || got.Reason != test.reachedReason {
				t.Errorf("ShardsReachable is %s, %s; want %s, %s", got.Status, got.Reason, test.reachable, test.reachedReason)
			}
		})
	}
}

// Cluster API copies no provider id of a pool before it is ready, so one shard without
// stock or connection must not hide the Nodes of the others.
func TestStatusReadyWithTheFirstInstance(t *testing.T) {
	pool := newPool("a", "b")
	with := func(group *v1beta1.NstanceShardGroup, replicas int32) *v1beta1.NstanceShardGroup {
		group.Status.Replicas = &replicas
		return group
	}
	tests := map[string]struct {
		seen  observation
		ready bool
	}{
		"no shard group exists":                             {observed(pool, 5), false},
		"no shard group exists, none wanted":                {observed(pool, 0), false},
		"no shard has reported":                             {observed(pool, 5, newShardGroup(pool, "a", 3), newShardGroup(pool, "b", 2)), false},
		"one shard never reported, the other has instances": {observed(pool, 5, newShardGroup(pool, "a", 3), ready(newShardGroup(pool, "b", 2))), true},
		"one shard is short of capacity, the other has its first instance": {observed(pool, 5,
			with(notReady(newShardGroup(pool, "a", 3), "ProviderError", "no capacity"), 0),
			with(notReady(newShardGroup(pool, "b", 2), "Scaling", "1 of 2 instances are running"), 1)), true},
		"every shard has reported, none has an instance": {observed(pool, 5,
			with(notReady(newShardGroup(pool, "a", 3), "Scaling", ""), 0),
			with(notReady(newShardGroup(pool, "b", 2), "Scaling", ""), 0)), false},
		"none is wanted, every shard has reported": {observed(pool, 0,
			notReady(newShardGroup(pool, "a", 0), "Scaling", ""), ready(newShardGroup(pool, "b", 0))), true},
		"none is wanted, one shard never reported": {observed(pool, 0, newShardGroup(pool, "a", 0), ready(newShardGroup(pool, "b", 0))), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			status := statusOf(test.seen)
			if ptr.Deref(status.Ready, false) != test.ready || ptr.Deref(status.Initialization.Provisioned, false) != test.ready {
				t.Errorf("ready is %v and provisioned %v, want %t", status.Ready, status.Initialization.Provisioned, test.ready)
			}
		})
	}
}

// Cluster API stops copying ids and replicas of a pool that falls back.
func TestStatusStaysReady(t *testing.T) {
	pool := newPool("a")
	pool.Status = statusOf(observed(pool, 3, ready(newShardGroup(pool, "a", 3))))
	for name, seen := range map[string]observation{
		"while it scales":             observed(pool, 5, ready(newShardGroup(pool, "a", 3))),
		"while its shard is away":     observed(pool, 3, away(ready(newShardGroup(pool, "a", 3)))),
		"while its group is missing":  observed(pool, 3),
		"while there are no replicas": {pool: pool, shards: []shardState{{id: "a", configured: true}}},
	} {
		status := statusOf(seen)
		if !ptr.Deref(status.Ready, false) || !ptr.Deref(status.Initialization.Provisioned, false) {
			t.Errorf("%s: ready is %v and provisioned %v", name, status.Ready, status.Initialization.Provisioned)
		}
		if !meta.IsStatusConditionFalse(status.Conditions, v1beta1.ConditionReady) {
			t.Errorf("%s: the condition Ready is not current", name)
		}
	}
}

func TestStatusAddsUp(t *testing.T) {
	pool := newPool("a", "b", "c")
	a, b, removed := ready(newShardGroup(pool, "a", 3)), away(ready(newShardGroup(pool, "b", 2))), ready(newShardGroup(pool, "d", 1))
	a.Status.IsStatic, b.Status.IsStatic = ptr.To(false), ptr.To(true)
	a.Status.Draining, b.Status.Draining, removed.Status.Draining = ptr.To[int32](2), nil, ptr.To[int32](1)
	a.Status.DrainsBlocked = ptr.To[int32](1)
	b.Status.Config = &v1beta1.GroupConfig{Template: "from-b", Subnets: []string{"public"}}

	pool.Generation = 7
	status := statusOf(observed(pool, 8, a, b, removed))
	if got := *status.DesiredReplicas; got != 8 {
		t.Errorf("desired %d, want what is spread", got)
	}
	if got := *status.Replicas; got != 6 {
		t.Errorf("%d replicas, want those of the unreachable and of the removed shard too: 6", got)
	}
	if *status.Draining != 3 || *status.DrainsBlocked != 1 {
		t.Errorf("%d drain and %d are blocked, want 3 and 1", *status.Draining, *status.DrainsBlocked)
	}
	if applied := applyStatus(pool, status).Status; *applied.Draining != 3 || *applied.DrainsBlocked != 1 {
		t.Errorf("%d drain and %d are blocked in what is applied", *applied.Draining, *applied.DrainsBlocked)
	}
	if want := (v1beta1.ShardsSummary{Total: 3, Reachable: 1}); status.Shards != want {
		t.Errorf("shards are %+v, want %+v", status.Shards, want)
	}
	if !*status.IsStatic {
		t.Error("not static although one shard's group is")
	}
	if status.Template != "from-b" || len(status.Subnets) != 1 {
		t.Errorf("template %q and subnets %v, want those of the first shard that reported", status.Template, status.Subnets)
	}
	if status.ObservedGeneration != 7 {
		t.Errorf("observed generation %d", status.ObservedGeneration)
	}
}

func TestStatusOfABlockedPoolKeepsTheSizesAsDesired(t *testing.T) {
	pool := newPool("a")
	seen := observed(pool, 9, ready(newShardGroup(pool, "a", 3)))
	seen.machinePools[0].Spec.Replicas = nil
	if got := *statusOf(seen).DesiredReplicas; got != 3 {
		t.Errorf("desired %d, want the 3 that the shard was sent", got)
	}
}

// A message that counts would cost one write per instance.
func TestStatusIsTheSameWhileOnlyTheShardsMessagesChange(t *testing.T) {
	pool := newPool("a")
	group := notReady(newShardGroup(pool, "a", 9), "Scaling", "1 of 9 instances run")
	pool.Status = statusOf(observed(pool, 9, group))
	condition(group, v1beta1.ConditionReady, metav1.ConditionFalse, "Scaling", "2 of 9 instances run")
	if got := statusOf(observed(pool, 9, group)); !equality.Semantic.DeepEqual(got, pool.Status) {
		t.Errorf("got %+v after %+v", got, pool.Status)
	}
}

func TestStatusAmbiguousIDIsAProblem(t *testing.T) {
	pool := newPool("a")
	seen := observed(pool, 1, ready(newShardGroup(pool, "a", 1), "i-1"))
	status := newStatus(pool, seen, planOf(seen), &problem{v1beta1.ReasonAmbiguousProviderID, "two Nodes"})
	got := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionReady)
	if got.Status != metav1.ConditionFalse || got.Reason != v1beta1.ReasonAmbiguousProviderID {
		t.Errorf("Ready is %s, %s", got.Status, got.Reason)
	}
}
