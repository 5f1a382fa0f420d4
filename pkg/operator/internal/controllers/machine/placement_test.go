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
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/testing/tier"
)

func TestChoose(t *testing.T) {
	good := func(id string, placed int) candidate {
		return candidate{id: id, synced: true, reachable: true, hasGroup: true, nstanceMachines: placed}
	}
	but := func(c candidate, change func(*candidate)) candidate {
		change(&c)
		return c
	}
	notSynced := but(good("not-synced", 0), func(c *candidate) { c.synced, c.hasGroup = false, false })
	disconnected := but(good("disconnected", 0), func(c *candidate) { c.reachable = false })
	without := but(good("without", 0), func(c *candidate) { c.hasGroup = false })
	tests := map[string]struct {
		requested  string
		candidates []candidate
		want       string
		reason     string
		message    string
	}{
		"the one with the fewest NstanceMachines": {candidates: []candidate{good("a", 3), good("b", 1), good("c", 2)}, want: "b"},
		"of several the first by id":              {candidates: []candidate{good("c", 1), good("b", 1), good("a", 2)}, want: "b"},
		"none that is disconnected":               {candidates: []candidate{disconnected, good("b", 9)}, want: "b"},
		"none without the group":                  {candidates: []candidate{without, good("b", 9)}, want: "b"},
		"none whose groups are not known":         {candidates: []candidate{notSynced, good("b", 9)}, want: "b"},
		"the requested one, in any state":         {requested: "b", candidates: []candidate{good("a", 0), {id: "b"}}, want: "b"},
		"a requested one that is not configured": {requested: "z", candidates: []candidate{good("a", 0)},
			reason: v1beta1.ReasonUnknownShard, message: `shard "z" is not configured`},
		"not all groups are known": {candidates: []candidate{notSynced, disconnected, without},
			reason: v1beta1.ReasonNotSynced, message: "no shard whose groups are known can be used; not known yet: not-synced"},
		"all that have it are disconnected": {candidates: []candidate{disconnected, without},
			reason: v1beta1.ReasonNoShard, message: "no shard that has the group is connected; not connected: disconnected"},
		"none has it": {candidates: []candidate{without}, reason: v1beta1.ReasonNoShard, message: "no shard has the group"},
		"no shards":   {reason: v1beta1.ReasonNoShard, message: "no shard has the group"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, blocked := choose(test.requested, test.candidates)
			if got != test.want || (blocked != nil) != (test.reason != "") {
				t.Fatalf("got %q, %+v, want %q", got, blocked, test.want)
			}
			if blocked != nil && *blocked != (problem{test.reason, test.message}) {
				t.Errorf("got %+v", *blocked)
			}
		})
	}
}

// All workers place NstanceMachines at the same time, and the cache does not show
// any placement yet.
func TestManyNstanceMachinesAreSpreadEvenly(t *testing.T) {
	each, before := tier.Pick(67, 167), 20
	var all []*v1beta1.NstanceMachine
	for i := range 3*each - before {
		all = append(all, newNstanceMachine(fmt.Sprintf("m-%d", i)))
	}
	// Shard a has some already. Those of another group do not count.
	for i := range before {
		all = append(all, running(newNstanceMachine(fmt.Sprintf("old-%d", i)), fmt.Sprintf("i-%d", i)))
		other := running(newNstanceMachine(fmt.Sprintf("other-%d", i)), fmt.Sprintf("o-%d", i))
		other.Spec.GroupRef.Name, other.Status.Shard = "others", "c"
		all = append(all, other)
	}
	h := newHarness(t, newShards("a", "b", "c"), all...)
	h.Ctx = klog.NewContext(t.Context(), klog.Logger{})
	syncAll := func() {
		names := make(chan string)
		var running sync.WaitGroup
		for range workers {
			running.Go(func() {
				for name := range names {
					if _, err := h.controller.sync(h.Ctx, cache.NewObjectName(controllertest.Namespace, name)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		for _, nstanceMachine := range all {
			names <- nstanceMachine.Name
		}
		close(names)
		running.Wait()
	}
	count := func() (placed map[string]int, requested int) {
		placed = map[string]int{}
		for _, nstanceMachine := range all {
			if got := h.nstanceMachine(nstanceMachine.Name); got.Spec.GroupRef.Name == "workers" {
				placed[got.Status.Shard]++
				if got.Status.InstanceID != "" {
					requested++
				}
			}
		}
		return placed, requested
	}

	syncAll()
	placed, _ := count()
	for _, id := range h.Fake.Shards() {
		if placed[id] != each {
			t.Errorf("shard %s has %d NstanceMachines, want %d", id, placed[id], each)
		}
	}
	// While the cache is stale nothing more happens.
	h.Writes()
	syncAll()
	if did := h.Writes(); did != nil || h.requests() != 0 {
		t.Errorf("did %d writes and %d create requests", len(did), h.requests())
	}
	h.Show()
	syncAll()
	if _, requested := count(); requested != 3*each || h.requests() != 3*each-before {
		t.Errorf("there are %d instances, %d were requested", requested, h.requests())
	}
	if got, _ := count(); got["a"] != each || got["b"] != each {
		t.Errorf("the placement has changed: %v", got)
	}
	// A placement that the cache shows is not counted twice.
	seen := observation{nstanceMachine: newNstanceMachine("late"), machine: newMachine("late")}
	h.controller.place(seen, nil)
	if left := len(h.controller.placements); left != 1 {
		t.Errorf("%d placements are left, want the last", left)
	}
}
