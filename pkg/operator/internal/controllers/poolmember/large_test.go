// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

// A pool of 500 instances over three shards: what changes for one of them costs no
// more than in a small pool.
func TestWritesOfALargePool(t *testing.T) {
	const size = 500
	pool := newPool("a", "b", "c")
	groups := byShard{}
	ids := map[string][]string{}
	for i := range size {
		on := string(pool.Spec.Shards[i%3])
		ids[on] = append(ids[on], fmt.Sprintf("i-%03d", i))
	}
	objects := []runtime.Object{pool}
	for _, id := range pool.Spec.Shards {
		groups[string(id)] = running(ids[string(id)]...)
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

	h.setGroup("b", running(append(ids["b"], "i-new")...))
	count("one more instance", 1)
	h.addMachines(newMachine("i-new"))

	h.update("nstanceshardgroups", newShardGroup(pool, "c", ids["c"][7]))
	count("a selected instance", 1)
	count("waiting for it", 0)

	h.remove(ids["c"][7])
	count("a deleted one that is still listed", 0)
	h.setGroup("c", running(append(ids["c"][:7:7], ids["c"][8:]...)...))
	count("a deleted one", 0)

	h.update("nstancemachinepools", controllertest.Deleting(pool.DeepCopy()))
	count("a deleted pool", size)
	count("waiting for that", 0)
}
