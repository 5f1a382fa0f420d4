// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

// statusOf returns the status after a sync with this observation.
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
			"Unknown", "NotSynced", "not known yet: a, b", "Unknown", "NotSynced",
		},
		"a shard scales": {
			observed(pool, 5, ready(newShardGroup(pool, "a", 3)), running(ready(newShardGroup(pool, "b", 2)), 1)),
			"True", "Ready", "", "True", "Reachable",
		},
		"a shard was not sent the new size": {
			observed(pool, 9, ready(newShardGroup(pool, "a", 3)), ready(newShardGroup(pool, "b", 2))),
			"True", "Ready", "", "True", "Reachable",
		},
		"a shard is rejected, another scales": {
			observed(pool, 5, running(ready(newShardGroup(pool, "a", 3)), 1),
				notReady(newShardGroup(pool, "b", 2), "ConfigRejected", "no such template")),
			"False", "ConfigRejected", "b: no such template", "True", "Reachable",
		},
		"a drain is blocked": {
			observed(pool, 5, ready(newShardGroup(pool, "a", 3)), notReady(newShardGroup(pool, "b", 2), "DrainBlocked", "a drain is blocked")),
			"False", "DrainBlocked", "b: a drain is blocked", "True", "Reachable",
		},
		"a shard that the pool no longer names is being emptied": {
			observed(pool, 5, ready(newShardGroup(pool, "a", 3)), ready(newShardGroup(pool, "b", 2)), notReady(newShardGroup(pool, "c", 2), "Deleting", "the shard is terminating the instances of the group")),
			"True", "Ready", "", "True", "Reachable",
		},
		"a shard that the pool no longer names is unreachable": {
			observed(pool, 5, ready(newShardGroup(pool, "a", 3)), ready(newShardGroup(pool, "b", 2)), away(newShardGroup(pool, "c", 2))),
			"False", "ShardUnreachable", "c: connection refused", "True", "Reachable",
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
	tests := map[string]struct {
		seen  observation
		ready bool
	}{
		"no shard group exists":                             {observed(pool, 5), false},
		"no shard group exists, none wanted":                {observed(pool, 0), false},
		"no shard has reported":                             {observed(pool, 5, newShardGroup(pool, "a", 3), newShardGroup(pool, "b", 2)), false},
		"one shard never reported, the other has instances": {observed(pool, 5, newShardGroup(pool, "a", 3), ready(newShardGroup(pool, "b", 2))), true},
		"one shard is short of capacity, the other has its first instance": {observed(pool, 5,
			running(notReady(newShardGroup(pool, "a", 3), "ProviderError", "no capacity"), 0),
			running(ready(newShardGroup(pool, "b", 2)), 1)), true},
		"every shard has reported, none has an instance": {observed(pool, 5,
			running(ready(newShardGroup(pool, "a", 3)), 0),
			running(ready(newShardGroup(pool, "b", 2)), 0)), false},
		"none is wanted, every shard has reported": {observed(pool, 0,
			ready(newShardGroup(pool, "a", 0)), ready(newShardGroup(pool, "b", 0))), true},
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
		"while its shard is away":     observed(pool, 3, away(ready(newShardGroup(pool, "a", 3)))),
		"while its group is missing":  observed(pool, 3),
		"while there are no replicas": {pool: pool, shards: []shardState{{id: "a", configured: true}}},
	} {
		status := statusOf(seen)
		if !ptr.Deref(status.Ready, false) || !ptr.Deref(status.Initialization.Provisioned, false) {
			t.Errorf("%s: ready is %v and provisioned %v", name, status.Ready, status.Initialization.Provisioned)
		}
	}
}

// While a pool is scaled nothing is wrong with it.
func TestScalingConditions(t *testing.T) {
	pool := newPool("a", "b")
	const notUp, notDown = "False NotScalingUp: ", "False NotScalingDown: "
	for name, test := range map[string]struct {
		seen     observation
		up, down string
	}{
		"at rest":  {observed(pool, 4, ready(newShardGroup(pool, "a", 2)), ready(newShardGroup(pool, "b", 2))), notUp, notDown},
		"up":       {observed(pool, 6, ready(newShardGroup(pool, "a", 2)), ready(newShardGroup(pool, "b", 2))), "True ScalingUp: fewer instances run than are wanted on a, b", notDown},
		"down":     {observed(pool, 3, ready(newShardGroup(pool, "a", 2)), ready(newShardGroup(pool, "b", 2))), notUp, "True Removing: instances are being removed on b"},
		"replaced": {observed(pool, 4, ready(newShardGroup(pool, "a", 2)), running(ready(newShardGroup(pool, "b", 2)), 1)), "True ScalingUp: fewer instances run than are wanted on b", notDown},
		"a surge":  {observed(pool, 4, ready(newShardGroup(pool, "a", 2)), running(ready(newShardGroup(pool, "b", 2)), 3)), notUp, "True Removing: instances are being removed on b"},
		"moved":    {observed(pool, 4, running(ready(newShardGroup(pool, "a", 2)), 3), running(ready(newShardGroup(pool, "b", 2)), 1)), "True ScalingUp: fewer instances run than are wanted on b", "True Removing: instances are being removed on a"},
		"new":      {observed(pool, 4), "True ScalingUp: fewer instances run than are wanted on a, b", notDown},
		"empty":    {observed(pool, 0), notUp, notDown},
		"a shard is removed": {observed(pool, 4, ready(newShardGroup(pool, "a", 2)), ready(newShardGroup(pool, "b", 2)), ready(newShardGroup(pool, "c", 1))),
			notUp, "True Removing: instances are being removed on c"},
	} {
		t.Run(name, func(t *testing.T) {
			status := statusOf(test.seen)
			for kind, want := range map[string]string{v1beta1.ConditionScalingUp: test.up, v1beta1.ConditionScalingDown: test.down} {
				got := meta.FindStatusCondition(status.Conditions, kind)
				require.NotNil(t, got)
				assert.Equal(t, want, fmt.Sprintf("%s %s: %s", got.Status, got.Reason, got.Message))
			}
		})
	}
}

func TestStatusAddsUp(t *testing.T) {
	pool := newPool("a", "b", "c")
	a, b, removed := ready(newShardGroup(pool, "a", 3)), away(ready(newShardGroup(pool, "b", 2))), ready(newShardGroup(pool, "d", 1))
	a.Status.IsStatic, b.Status.IsStatic = ptr.To(false), ptr.To(true)
	a.Status.DrainingReplicas, b.Status.DrainingReplicas, removed.Status.DrainingReplicas = ptr.To[int32](2), nil, ptr.To[int32](1)
	a.Status.BlockedReplicas = ptr.To[int32](1)
	b.Status.Config = &v1beta1.GroupConfig{Template: "from-b", Subnets: []string{"public"}}

	pool.Generation = 7
	status := statusOf(observed(pool, 8, a, b, removed))
	if got := *status.DesiredReplicas; got != 8 {
		t.Errorf("desired %d, want what is spread", got)
	}
	if got := *status.Replicas; got != 6 {
		t.Errorf("%d replicas, want those of the unreachable and of the removed shard too: 6", got)
	}
	if *status.DrainingReplicas != 3 || *status.BlockedReplicas != 1 {
		t.Errorf("%d drain and %d are blocked, want 3 and 1", *status.DrainingReplicas, *status.BlockedReplicas)
	}
	if applied := applyStatus(pool, status).Status; *applied.DrainingReplicas != 3 || *applied.BlockedReplicas != 1 {
		t.Errorf("%d drain and %d are blocked in what is applied", *applied.DrainingReplicas, *applied.BlockedReplicas)
	}
	if want := (v1beta1.ShardsSummary{Total: ptr.To[int32](3), Reachable: ptr.To[int32](1)}); !equality.Semantic.DeepEqual(status.Shards, want) {
		t.Errorf("shards are %+v, want %+v", status.Shards, want)
	}
	if !*status.IsStatic {
		t.Error("not static although one shard's group is")
	}
	if status.Template != "from-b" || len(status.Subnets) != 1 {
		t.Errorf("template %q and subnets %v, want those of the shard that has reported", status.Template, status.Subnets)
	}
	a.Status.Config = &v1beta1.GroupConfig{Template: "from-a", Subnets: []string{"public"}}
	if status := statusOf(observed(pool, 8, a, b)); status.Template != "" || len(status.Subnets) != 1 {
		t.Errorf("template %q and subnets %v, want only what the shards have in common", status.Template, status.Subnets)
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

// A message that counts would be one more write for each instance.
func TestConditionsDoNotCountInstances(t *testing.T) {
	pool := newPool("a")
	pool.Status = statusOf(observed(pool, 9, running(ready(newShardGroup(pool, "a", 9)), 1)))
	got := statusOf(observed(pool, 9, running(ready(newShardGroup(pool, "a", 9)), 2)))
	assert.Equal(t, pool.Status.Conditions, got.Conditions)
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

// restoredPool returns a pool and its shard groups on shards a and b, as a backup
// restores them that has no status.
func restoredPool(sizes ...int32) (*v1beta1.NstanceMachinePool, []*v1beta1.NstanceShardGroup) {
	pool := newPool("a", "b")
	pool.Spec.ProviderIDList = []string{"i-1", "i-2"}
	return pool, []*v1beta1.NstanceShardGroup{newShardGroup(pool, "a", sizes[0]), newShardGroup(pool, "b", sizes[1])}
}

// Cluster API deletes the Node of an id that is removed.
func TestProviderIDsSurviveTheLossOfTheStatus(t *testing.T) {
	pool, groups := restoredPool(1, 1)
	h := newHarness(t, withSizes(map[string]int32{"a": 1, "b": 1}), pool, groups[0], groups[1])
	h.scale(2)
	expect := func(want ...string) {
		t.Helper()
		_, _, err := h.sync()
		assert.NoError(t, err)
		assert.Equal(t, want, h.pool().Spec.ProviderIDList)
	}
	expect("i-1", "i-2")
	h.report("a", func(group *v1beta1.NstanceShardGroup) { ready(group, "i-1") })
	expect("i-1", "i-2")
	h.report("b", func(group *v1beta1.NstanceShardGroup) { ready(group) })
	expect("i-1")
}

// The instances of a pool with Machines are selected one by one. Dividing them evenly
// would terminate some.
func TestAnUnevenPoolWithMachinesStaysUnevenWithoutItsStatus(t *testing.T) {
	pool, groups := restoredPool(3, 0)
	member := &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{
		Namespace: pool.Namespace, Name: "i-1", UID: "uid-i-1",
		Labels: map[string]string{clusterv1.MachinePoolNameLabel: "workers"},
		OwnerReferences: []metav1.OwnerReference{
			{APIVersion: v1beta1.SchemeGroupVersion.String(), Kind: v1beta1.PoolKind, Name: pool.Name, UID: pool.UID},
		},
	}, Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "workers"}, Shard: "a"}}
	onA, onB := listed("i-1", "i-2", "i-3"), listed()
	for mode, want := range map[v1beta1.MachineMode]map[string]int32{
		v1beta1.MachineModeAlways: {"a": 3, "b": 0},
		v1beta1.MachineModeNever:  {"a": 2, "b": 1},
	} {
		t.Run(string(mode), func(t *testing.T) {
			pool := pool.DeepCopy()
			pool.Spec.MachineMode = mode
			h := newHarness(t, withGroups(map[string]*shard.Group{"a": onA, "b": onB}), pool, groups[0].DeepCopy(), groups[1].DeepCopy(), member)
			h.scale(3)
			_, _, err := h.sync()
			assert.NoError(t, err)
			h.expectSizes(want)
		})
	}
}

func node(name, providerID string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{ProviderID: providerID}}
}

func TestProviderIDs(t *testing.T) {
	pool := newPool("a", "b")
	tests := map[string]struct {
		before    []string
		partial   bool
		groups    []*v1beta1.NstanceShardGroup
		nodes     []*corev1.Node
		want      []string
		ambiguous string
	}{
		"there are none": {before: []string{"i-1"}},
		"without Nodes they are the servers', sorted": {
			groups: []*v1beta1.NstanceShardGroup{
				ready(newShardGroup(pool, "a", 2), "i-3", "i-1"), ready(newShardGroup(pool, "b", 1), "i-2"),
			},
			want: []string{"i-1", "i-2", "i-3"},
		},
		"they are written as on their Nodes": {
			groups: []*v1beta1.NstanceShardGroup{ready(newShardGroup(pool, "a", 2), "i-1", "us-west-2a/i-2")},
			nodes:  []*corev1.Node{node("one", "aws:///us-west-2a/i-1"), node("two", "aws:///us-west-2a/i-2"), node("other", "aws:///us-west-2b/i-2")},
			want:   []string{"aws:///us-west-2a/i-1", "aws:///us-west-2a/i-2"},
		},
		"those of a shard that is away stay": {
			groups: []*v1beta1.NstanceShardGroup{away(ready(newShardGroup(pool, "a", 1), "i-1")), ready(newShardGroup(pool, "b", 1), "i-2")},
			want:   []string{"i-1", "i-2"},
		},
		"an instance that two shards report is listed once": {
			groups: []*v1beta1.NstanceShardGroup{ready(newShardGroup(pool, "a", 1), "i-1"), ready(newShardGroup(pool, "b", 1), "i-1")},
			want:   []string{"i-1"},
		},
		"two Nodes are problem, and the server's words are all there is": {
			groups:    []*v1beta1.NstanceShardGroup{ready(newShardGroup(pool, "a", 1), "i-1")},
			nodes:     []*corev1.Node{node("one", "aws:///us-west-2a/i-1"), node("two", "aws:///us-west-2b/i-1")},
			want:      []string{"i-1"},
			ambiguous: `provider id "i-1" matches 2 Nodes`,
		},
		"a second Node does not put an id out of the list": {
			before:    []string{"aws:///us-west-2a/i-1"},
			groups:    []*v1beta1.NstanceShardGroup{ready(newShardGroup(pool, "a", 1), "i-1")},
			nodes:     []*corev1.Node{node("one", "aws:///us-west-2a/i-1"), node("two", "aws:///us-west-2b/i-1")},
			want:      []string{"aws:///us-west-2a/i-1"},
			ambiguous: `provider id "i-1" matches 2 Nodes`,
		},
		"a Node that went does not put an id out of the list": {
			before: []string{"aws:///us-west-2a/i-1"},
			groups: []*v1beta1.NstanceShardGroup{ready(newShardGroup(pool, "a", 1), "i-1")},
			want:   []string{"aws:///us-west-2a/i-1"},
		},
		"an id that no shard reports is removed": {
			before: []string{"aws:///us-west-2a/i-1", "aws:///us-west-2a/i-2"},
			groups: []*v1beta1.NstanceShardGroup{ready(newShardGroup(pool, "a", 1), "i-1")},
			nodes:  []*corev1.Node{node("one", "aws:///us-west-2a/i-1"), node("two", "aws:///us-west-2a/i-2")},
			want:   []string{"aws:///us-west-2a/i-1"},
		},
		"an id that no shard reports stays while a shard has reported nothing": {
			before:  []string{"aws:///us-west-2a/i-1", "i-2", "i-3"},
			partial: true,
			groups:  []*v1beta1.NstanceShardGroup{ready(newShardGroup(pool, "a", 1), "us-west-2a/i-1", "i-2")},
			nodes:   []*corev1.Node{node("two", "aws:///us-west-2a/i-2")},
			want:    []string{"aws:///us-west-2a/i-1", "aws:///us-west-2a/i-2", "i-3"},
		},
		"a Node with another id of the same instance is right": {
			before: []string{"i-1"},
			groups: []*v1beta1.NstanceShardGroup{ready(newShardGroup(pool, "a", 1), "i-1")},
			nodes:  []*corev1.Node{node("one", "aws:///us-west-2a/i-1")},
			want:   []string{"aws:///us-west-2a/i-1"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, shardtest.New())
			for _, node := range test.nodes {
				h.Put(h.Informers.Nodes, node)
			}
			got, ambiguous := h.controller.providerIDs(test.before, test.groups, !test.partial)
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			message := ""
			if ambiguous != nil {
				message = ambiguous.message
			}
			if message != test.ambiguous {
				t.Errorf("got problem %q, want %q", message, test.ambiguous)
			}
		})
	}
}

// Cluster API deletes the Node of an id that leaves the list, so a shard cannot put the Node of
// another shard into it, nor take the Node of another pool out of it.
func TestNodeOfAnotherShardDoesNotGetIntoTheList(t *testing.T) {
	pool, other := newPool("a"), newPool("b")
	other.Name, other.UID = "other", "uid-other"
	other.Spec.ProviderIDList = []string{"aws:///us-west-2a/i-2"}
	h := newHarness(t, shardtest.New("a", "b"))
	labeled := node("labeled", "aws:///us-west-2a/i-3")
	labeled.Labels = map[string]string{v1beta1.LabelShard: ""}
	h.Put(h.Informers.Nodes, node("own", "aws:///us-west-2a/i-1"), node("other", "aws:///us-west-2a/i-2"), labeled)
	liar, honest := ready(newShardGroup(pool, "a", 3), "i-1", "i-2", "i-3"), ready(newShardGroup(other, "b", 1), "i-2")
	h.Put(h.Informers.Nstance.NstanceShardGroups().Informer(), liar, honest)

	ids, wrong := h.controller.providerIDs(nil, []*v1beta1.NstanceShardGroup{liar}, true)
	assert.Equal(t, []string{"aws:///us-west-2a/i-1"}, ids)
	assert.Equal(t, &problem{v1beta1.ReasonNodeOfOtherShard, `shard a reports the provider id "aws:///us-west-2a/i-2", and so does shard b`}, wrong)

	ids, wrong = h.controller.providerIDs(other.Spec.ProviderIDList, []*v1beta1.NstanceShardGroup{honest}, true)
	assert.Equal(t, other.Spec.ProviderIDList, ids, "an id that is listed stays")
	assert.Equal(t, v1beta1.ReasonNodeOfOtherShard, wrong.reason)
}

// A restore may drop owner references. The instances of such a shard group run, and Cluster API
// would delete the Node of each id that leaves the list.
func TestShardGroupWithoutAnOwnerIsAdopted(t *testing.T) {
	pool := newPool("a", "b")
	ids := []string{"i-a1", "i-a2", "i-b1", "i-b2"}
	pool.Spec.ProviderIDList = ids
	h := newHarness(t, withSizes(map[string]int32{"a": 2, "b": 2}), pool,
		ready(newShardGroup(pool, "a", 2), ids[:2]...), ready(newShardGroup(pool, "b", 2), ids[2:]...))
	h.scale(4)
	_, _, err := h.sync()
	require.NoError(t, err)
	h.Show()
	h.report("a", func(g *v1beta1.NstanceShardGroup) { g.OwnerReferences = nil })
	writes, _, err := h.sync()
	require.NoError(t, err)
	assert.Contains(t, writes, groupA)
	assert.Equal(t, ids, h.pool().Spec.ProviderIDList)
	assert.True(t, metav1.IsControlledBy(h.shardGroup("a"), h.pool()))
	h.Show()
	_, _, err = h.sync()
	require.NoError(t, err)
	assert.Equal(t, ids, h.pool().Spec.ProviderIDList)
}

// A pool that is blocked decides nothing, and removes no id.
func TestBlockedPoolKeepsItsProviderIDs(t *testing.T) {
	pool := newPool("a", "b")
	pool.Spec.ProviderIDList = []string{"i-a1", "i-b1"}
	other := newPool("b")
	other.Name, other.UID = "other", "uid-other"
	foreign := ready(newShardGroup(other, "b", 1), "i-b1")
	h := newHarness(t, withSizes(map[string]int32{"a": 1, "b": 1}), pool, ready(newShardGroup(pool, "a", 1), "i-a1"), foreign)
	h.scale(2)
	for range 3 {
		_, _, err := h.sync()
		require.NoError(t, err)
		h.Show()
	}
	assert.Equal(t, "False GroupInUse", conditionOf(h.pool(), v1beta1.ConditionReady))
	assert.Equal(t, []string{"i-a1", "i-b1"}, h.pool().Spec.ProviderIDList)
}
