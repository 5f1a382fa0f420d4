// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmachine

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
)

// A pool of 500 instances over three shards: what changes for one of them costs no
// more than in a small pool.
func TestWritesOfALargePool(t *testing.T) {
	const size = 500
	pool := newPool("a", "b", "c")
	groups := shards{}
	ids := map[string][]string{}
	for i := range size {
		on := string(pool.Spec.Shards[i%3])
		ids[on] = append(ids[on], fmt.Sprintf("i-%03d", i))
	}
	objects := []runtime.Object{pool}
	for _, id := range pool.Spec.Shards {
		groups[string(id)] = lists(ids[string(id)]...)
		objects = append(objects, newShardGroup(pool, id))
	}
	h := newHarness(t, groups, objects...)
	count := func(what string, want int) {
		t.Helper()
		h.show()
		writes, _, err := h.sync()
		if err != nil || len(writes) != want {
			t.Fatalf("%s costs %d writes, error %v, want %d", what, len(writes), err, want)
		}
	}
	count("a new pool", size)
	for _, all := range ids {
		for _, id := range all {
			h.addMachines(newMachine(id))
		}
	}
	count("nothing new", 0)

	groups["b"] = lists(append(ids["b"], "i-new")...)
	count("one more instance", 1)
	h.addMachines(newMachine("i-new"))

	h.update("nstanceshardgroups", newShardGroup(pool, "c", ids["c"][7]))
	count("one that was chosen to go", 1)
	count("waiting for it", 0)

	h.drop(ids["c"][7])
	count("one that is gone and still listed", 0)
	groups["c"] = lists(append(ids["c"][:7:7], ids["c"][8:]...)...)
	count("one that is gone", 0)

	h.update("nstancemachinepools", deleted(pool.DeepCopy()))
	count("a pool that goes", size)
	count("waiting for that", 0)
}
