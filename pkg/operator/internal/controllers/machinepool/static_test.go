// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"slices"
	"testing"

	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A shard whose configuration has lost the group, or that is not configured any more, can
// be removed from the pool.
func TestStatusStaticShards(t *testing.T) {
	pool := newPool("a", "b", "c", "d")
	group := func(shard string, static bool) *v1beta1.NstanceShardGroup {
		group := ready(newShardGroup(pool, shard, 1))
		group.Status.IsStatic = &static
		return group
	}
	seen := observed(pool, 4, group("a", true), group("b", false), group("c", true), away(group("d", true)))
	seen.shards[2].configured = false
	status := statusOf(seen)
	want := []v1beta1.Identifier{"a", "d"}
	if !slices.Equal(status.StaticShards, want) || !*status.IsStatic {
		t.Errorf("the static shards are %q, want %q; static is %t", status.StaticShards, want, *status.IsStatic)
	}
	if got := applyStatus(pool, status).Status.StaticShards; !slices.Equal(got, want) {
		t.Errorf("%q are applied, want %q", got, want)
	}
	pool.Status = status
	if got := statusOf(observed(pool, 4, group("a", false), group("b", false), group("c", false), group("d", false))).StaticShards; len(got) > 0 {
		t.Errorf("the static shards are %q, want none", got)
	}
}

// No instance is moved when a shard is configured again.
func TestSizesStayWhenAShardIsConfiguredAgain(t *testing.T) {
	pool := newPool("a", "b", "c")
	seen := observed(pool, 12, newShardGroup(pool, "a", 3), newShardGroup(pool, "b", 3), newShardGroup(pool, "c", 3))
	seen.shards[2].configured, seen.shards[2].synced = false, false
	step := func(want string) {
		t.Helper()
		d := planOf(seen)
		if got := describe(d); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		seen = carriedOut(seen, d)
	}
	step("update a=5, update b=4, update c=3")
	step("")
	seen.shards[2].configured, seen.shards[2].synced = true, true
	step("")
	seen.machinePools[0].Spec.Replicas = ptr.To[int32](13)
	step("update a=5, update b=4, update c=4")
	step("")
}
