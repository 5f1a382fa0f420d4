// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"fmt"
	"sync"
	"testing"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// All at once, by as many workers as there are, with a cache that shows nothing of
// it yet.
func TestAStormOfMachinesIsSpreadEvenly(t *testing.T) {
	const each, before = 167, 20
	var machines []*v1beta1.NstanceMachine
	for i := range 3*each - before {
		machines = append(machines, newMachine(fmt.Sprintf("m-%d", i)))
	}
	// Shard a has some already, and some of another group, which do not count.
	for i := range before {
		machines = append(machines, running(newMachine(fmt.Sprintf("old-%d", i)), fmt.Sprintf("i-%d", i)))
		other := running(newMachine(fmt.Sprintf("other-%d", i)), fmt.Sprintf("o-%d", i))
		other.Spec.GroupRef.Name, other.Status.Shard = "others", "c"
		machines = append(machines, other)
	}
	h := newHarness(t, newShards("a", "b", "c"), machines...)
	h.ctx = klog.NewContext(t.Context(), klog.Logger{})
	syncAll := func() {
		names := make(chan string)
		var all sync.WaitGroup
		for range workers {
			all.Go(func() {
				for name := range names {
					if _, err := h.controller.sync(h.ctx, cache.NewObjectName(namespace, name)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for _, machine := range machines {
			names <- machine.Name
		}
		close(names)
		all.Wait()
	}
	count := func() (placed map[string]int, ordered int) {
		placed = map[string]int{}
		for _, machine := range machines {
			if got := h.machine(machine.Name); got.Spec.GroupRef.Name == "workers" {
				placed[got.Status.Shard]++
				if got.Status.InstanceID != "" {
					ordered++
				}
			}
		}
		return placed, ordered
	}

	syncAll()
	placed, _ := count()
	for _, id := range h.shards.Shards() {
		if placed[id] != each {
			t.Errorf("shard %s has %d machines, want %d", id, placed[id], each)
		}
	}
	// The cache is behind: nothing more happens.
	h.Writes()
	syncAll()
	if did := h.Writes(); did != nil || len(h.shards.requested) != 0 {
		t.Errorf("did %d writes and %d orders", len(did), len(h.shards.requested))
	}
	h.Show(h.informers)
	syncAll()
	if _, ordered := count(); ordered != 3*each || len(h.shards.requested) != 3*each-before {
		t.Errorf("there are %d instances, %d were ordered", ordered, len(h.shards.requested))
	}
	if got, _ := count(); got["a"] != each || got["b"] != each {
		t.Errorf("they have moved: %v", got)
	}
	// What the cache shows is not counted twice.
	seen := observation{machine: newMachine("late"), owner: newOwner("late")}
	h.controller.place(seen)
	if left := len(h.controller.placements); left != 1 {
		t.Errorf("%d placements are remembered, want the last", left)
	}
}
