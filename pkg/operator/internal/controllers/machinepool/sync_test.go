// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"errors"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

const (
	poolSpec   = "apply nstancemachinepools workers"
	poolStatus = "apply nstancemachinepools/status workers"
	groupA     = "apply nstanceshardgroups workers--a"
	groupB     = "apply nstanceshardgroups workers--b"
)

func TestSyncSpreadsAndThenWritesNothing(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 0, "b": 0}), newPool("b", "a"))
	h.scale(5)
	// The status waits for the first report.
	h.expect(groupA, groupB)
	for shard, size := range map[string]int32{"b": 3, "a": 2} {
		group := h.shardGroup(shard)
		if group.Spec.Size != size {
			t.Errorf("shard %s has size %d, want %d", shard, group.Spec.Size, size)
		}
		if !metav1.IsControlledBy(group, h.pool()) || !slices.Contains(group.Finalizers, v1beta1.FinalizerShardGroup) ||
			group.Labels[v1beta1.LabelGroup] != "workers" || group.Labels[v1beta1.LabelShard] != shard {
			t.Errorf("shard group has the metadata %+v", group.ObjectMeta)
		}
	}

	h.report("a", func(g *v1beta1.NstanceShardGroup) { ready(g, "i-1", "i-2") })
	h.report("b", func(g *v1beta1.NstanceShardGroup) { ready(g, "i-5", "i-4", "i-3") })
	h.expect(poolSpec, poolStatus)
	pool := h.pool()
	if want := []string{"i-1", "i-2", "i-3", "i-4", "i-5"}; !slices.Equal(pool.Spec.ProviderIDList, want) {
		t.Errorf("provider ids are %q, want %q", pool.Spec.ProviderIDList, want)
	}
	if pool.Status.ObservedGeneration != pool.Generation {
		t.Errorf("observed generation %d of %d", pool.Status.ObservedGeneration, pool.Generation)
	}
	if !meta.IsStatusConditionTrue(pool.Status.Conditions, v1beta1.ConditionReady) || *pool.Status.Replicas != 5 {
		t.Errorf("status is %+v", pool.Status)
	}

	h.Show()
	h.expect()
}

func TestSyncWritesOnlyTheGroupsThatDiffer(t *testing.T) {
	pool := newPool("a", "b")
	h := newHarness(t, withSizes(map[string]int32{"a": 2, "b": 2}), pool, ready(newShardGroup(pool, "a", 2), "i-1"), ready(newShardGroup(pool, "b", 2), "i-2"))
	h.scale(4)
	h.expect(poolSpec, poolStatus)
	h.Show()
	h.scale(5)
	h.expect(poolStatus, groupA)
}

func TestSyncOfAStaleCacheWritesNothing(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 0, "b": 0}), newPool("a", "b"))
	h.scale(5)
	h.expect(groupA, groupB)
	h.scale(50)
	writes, requeue, err := h.sync()
	if err != nil || len(writes) > 0 || requeue != controller.StaleRetry {
		t.Errorf("wrote %q and waits %s for the caches, error %v", writes, requeue, err)
	}
	h.Show()
	h.expect(poolStatus, groupA, groupB)
}

func TestSyncEmptiesTheListAtZero(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, withSizes(map[string]int32{"a": 1}), pool, ready(newShardGroup(pool, "a", 1), "i-1"))
	h.scale(1)
	h.expect(poolSpec, poolStatus)
	h.Show()
	h.scale(0)
	h.expect(poolStatus, groupA)
	h.report("a", func(g *v1beta1.NstanceShardGroup) { ready(g) })
	h.expect(poolSpec, poolStatus)
	got := h.pool()
	if len(got.Spec.ProviderIDList) != 0 || *got.Status.Replicas != 0 || !*got.Status.Ready {
		t.Errorf("list %q, replicas %d, ready %t", got.Spec.ProviderIDList, *got.Status.Replicas, *got.Status.Ready)
	}
	h.Show()
	h.expect()
}

func TestSyncDeletesTheGroupOfARemovedShardByItsUID(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, withSizes(map[string]int32{"a": 0}), pool, ready(newShardGroup(pool, "a", 1)), ready(newShardGroup(pool, "b", 1)))
	h.scale(1)
	var options metav1.DeleteOptions
	h.PrependReactor("delete", "nstanceshardgroups", func(action clienttesting.Action) (bool, runtime.Object, error) {
		options = action.(clienttesting.DeleteActionImpl).DeleteOptions
		return false, nil, nil
	})
	h.expect(poolStatus, "delete nstanceshardgroups workers--b")
	if options.Preconditions == nil || options.Preconditions.UID == nil || *options.Preconditions.UID != "uid-b" {
		t.Errorf("deleted with the preconditions %+v", options.Preconditions)
	}
	h.Show()
	h.expect()
}

func TestSyncWritesProviderIDsAsOnTheNodes(t *testing.T) {
	pool := newPool("a")
	h := newHarness(t, withSizes(map[string]int32{"a": 1}), pool, ready(newShardGroup(pool, "a", 1), "i-1"))
	h.scale(1)
	h.Put(h.Informers.Nodes, node("one", "aws:///us-west-2a/i-1"))
	h.expect(poolSpec, poolStatus)
	if got := h.pool().Spec.ProviderIDList; !slices.Equal(got, []string{"aws:///us-west-2a/i-1"}) {
		t.Errorf("provider ids are %q", got)
	}

	h.Show()
	h.Put(h.Informers.Nodes, node("two", "aws:///us-west-2b/i-1"))
	h.expect(poolStatus)
	if got := h.pool().Spec.ProviderIDList; !slices.Equal(got, []string{"aws:///us-west-2a/i-1"}) {
		t.Errorf("with a second Node the provider ids are %q", got)
	}
	if got := h.Events(); len(got) != 1 {
		t.Errorf("recorded %q, want one event about the second Node", got)
	}
	h.Show()
	h.expect()
}

// Caches return objects in any order.
func TestSyncWithTwoAmbiguousIDsWritesNothing(t *testing.T) {
	pool := newPool("a", "b", "c", "d")
	h := newHarness(t, withSizes(map[string]int32{"a": 1, "b": 1, "c": 1, "d": 1}), pool,
		ready(newShardGroup(pool, "a", 1), "i-1"), ready(newShardGroup(pool, "b", 1), "i-2"),
		ready(newShardGroup(pool, "c", 1), "i-3"), ready(newShardGroup(pool, "d", 1), "i-4"))
	h.scale(4)
	for _, id := range []string{"i-1", "i-2", "i-3", "i-4"} {
		h.Put(h.Informers.Nodes, node("one-"+id, "aws:///a/"+id), node("two-"+id, "aws:///b/"+id))
	}
	h.expect(poolSpec, poolStatus)
	h.Show()
	for range 20 {
		h.expect()
	}
}

func TestSyncDoesNotCountTheGroupsOfAFormerPool(t *testing.T) {
	former := newPool("a", "b")
	former.UID = "uid-of-the-former-pool"
	h := newHarness(t, withSizes(map[string]int32{"a": 1, "b": 1}), newPool("a"), ready(newShardGroup(former, "b", 4), "i-1"))
	h.scale(1)
	h.expect(groupA)
	h.report("a", func(g *v1beta1.NstanceShardGroup) { ready(g) })
	h.Fake.ByID["b"].Synced = false
	h.expect(poolStatus)
	if got := h.pool(); len(got.Spec.ProviderIDList) > 0 || *got.Status.Replicas != 1 {
		t.Errorf("the new pool has the ids %q and %d replicas", got.Spec.ProviderIDList, *got.Status.Replicas)
	}
}

func TestSyncOfAnUnknownShardRecordsOneEvent(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 0}), newPool("a", "nowhere"))
	h.scale(5)
	h.expect(poolStatus)
	h.Show()
	h.expect()
	want := []string{"Warning UnknownShard spec.shards names shards that are not configured: nowhere"}
	if got := h.Events(); !slices.Equal(got, want) {
		t.Errorf("recorded %q, want %q", got, want)
	}
}

func TestSyncReportsWhatItCanWhenAGroupCannotBeWritten(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 0, "b": 0}), newPool("a", "b"))
	h.scale(5)
	rejected := errors.New("rejected")
	h.Fail(groupA, rejected)
	writes, _, err := h.sync()
	if !errors.Is(err, rejected) {
		t.Errorf("got error %v, want one for the retry", err)
	}
	if want := []string{poolStatus, groupA, groupB}; !slices.Equal(writes, want) {
		t.Errorf("wrote %q, want %q", writes, want)
	}
	h.Fail(groupA, nil)
	h.Show()
	h.expect(groupA)
}

func TestSyncOfADeletedPoolWritesNothing(t *testing.T) {
	h := newHarness(t, withSizes(map[string]int32{"a": 0}))
	h.scale(5)
	h.expect()

	pool := newPool("a")
	pool.DeletionTimestamp, pool.Finalizers = &metav1.Time{Time: metav1.Now().Time}, []string{"example.com/other"}
	h = newHarness(t, withSizes(map[string]int32{"a": 0}), pool)
	h.scale(5)
	h.expect()
}
