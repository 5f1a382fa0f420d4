// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/storage"
)

// TestServerMayEndBetweenAnyTwoSteps lets a group scale, rotate and lose
// instances while the server ends before its first call to storage or cloud, its
// second, and so on, and another one goes on, with the cache and without. In the
// cloud there is never an instance too many, nor does one go that is needed, and
// in the end there are exactly those that are wanted.
func TestServerMayEndBetweenAnyTwoSteps(t *testing.T) {
	for _, cached := range []bool{true, false} {
		for step := 1; ; step++ {
			ended := false
			t.Run(fmt.Sprintf("cache kept %v, step %d", cached, step), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ended = endAt(t, step, cached)
				})
			})
			if t.Failed() || !ended {
				break
			}
		}
	}
}

// endAt plays the story with a server that ends before its call number step. It
// returns false when there were not so many.
func endAt(t *testing.T, step int, cached bool) (ended bool) {
	s := start(t, newConfig())
	const size = 3
	ids := s.run(workersKey, size)
	s.cloud.mu.Lock()
	s.cloud.watch = func() {
		there := 0
		for _, vm := range s.cloud.vms {
			if vm.State != instance.Terminating {
				there++
			}
		}
		if there > size+1 {
			t.Errorf("the cloud has %d instances, want %d at most", there, size+1)
		}
	}
	s.cloud.refuse = func(c call) error {
		if c.operation != "delete" || s.cloud.vms[c.id].State != instance.Running {
			return nil
		}
		others := 0
		for _, vm := range s.cloud.vms {
			if vm.ID != c.id && (vm.State == instance.Running || vm.State == instance.Pending) {
				others++
			}
		}
		if others < size {
			t.Errorf("%s goes and leaves %d", c.id, others)
		}
		return nil
	}
	s.cloud.mu.Unlock()
	s.bound = func() {
		if step--; step == 0 {
			ended = true
			s.cancel()
		}
	}
	// proceed lets everybody do what they can do, and another server follow the
	// one that has ended.
	taken := false
	proceed := func() {
		for range 12 {
			s.cloud.settle()
			synctest.Wait()
			if ended && !taken {
				taken = true
				s.end()
				if !cached {
					s.loseCache()
				}
				s.lead()
			}
			for _, i := range s.instances.Draining("default") {
				s.acknowledge(workersKey, i.ID)
			}
		}
	}

	s.cloud.lose(ids[0])
	synctest.Wait()
	proceed()
	s.cloud.become(s.cloud.ids(workersKey)[0], instance.Impaired)
	synctest.Wait()
	proceed()
	s.reconfigure(drift)
	proceed()

	s.cloud.takeCalls()
	s.look(workersKey)
	s.wantCalls()
	left := s.cloud.ids(workersKey)
	if len(left) != size || len(s.cloud.List(workersKey)) != size {
		t.Errorf("the cloud has %v", s.cloud.List(workersKey))
	}
	for _, i := range s.instances.List(workersKey) {
		group, _ := s.groups.Get(workersKey)
		if i.State != instance.Running || i.Leaving() || i.InfraConfigHash != group.InfraConfigHash || i.ProviderID == "" {
			t.Errorf("is left as %+v", i)
		}
	}
	infos, err := s.storage.List(t.Context(), storage.InstancePrefix("a"))
	if err != nil || len(infos) != size {
		t.Errorf("there are records %v, %v", infos, err)
	}
	// What has gone was announced, except what went while nobody was there to say it.
	deleted := map[string]bool{}
	s.mu.Lock()
	for _, e := range s.events {
		deleted[e.id] = deleted[e.id] || e.status == "deleted"
	}
	s.mu.Unlock()
	silent := 0
	for _, id := range slices.Sorted(maps.Keys(s.cloud.groups)) {
		if !slices.Contains(left, id) && !deleted[id] {
			silent++
		}
	}
	if silent > 1 || silent > 0 && !ended {
		t.Errorf("%d instances went without a word", silent)
	}
	return ended
}
