// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/testing/tier"
)

// TestRandomChanges makes one random change at a time and lets reconciler,
// cloud and operator finish. Each time, every group must have its desired state
// without calls for another group, and every deletion must have been announced.
func TestRandomChanges(t *testing.T) {
	keys := []instance.GroupKey{workersKey, noDrainKey, otherKey}
	for _, seed := range tier.Seeds(t, tier.Pick(6, 30)) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 0))
				s := start(t, newConfig())
				onDemand := map[string]instance.GroupKey{}
				for step := range 60 {
					s.pass(lossWindow) // the losses of one step are few
					key := keys[random.IntN(len(keys))]
					all := false
					what := random.IntN(9)
					switch ids := s.cloud.ids(key); {
					case what < 3:
						s.scale(key, random.IntN(5))
					case what == 3:
						s.remove(key)
					case what == 4:
						if _, found := s.groups.Get(key); !found {
							break
						}
						onDemand[s.onDemand(key, func(*instance.Record) {})] = key
					case what == 5:
						// The next server has only the storage and the cloud.
						s.stop()
						if random.IntN(2) == 0 {
							s.loseCache()
						}
						s.lead()
					case what == 6:
						all = true
						s.reconfigure(func(c *config.Config) {
							worker := c.Templates["worker"]
							worker.Args = map[string]any{"step": fmt.Sprint(step)}
							c.Templates["worker"] = worker
						})
					case len(ids) == 0:
					default:
						id := ids[random.IntN(len(ids))]
						states := []instance.State{instance.Impaired, instance.Stopped, instance.Failed, instance.Terminating}
						if what == 7 {
							s.cloud.vanish(id)
							delete(onDemand, id)
							break
						}
						state := states[random.IntN(len(states))]
						if onDemand[id] != (instance.GroupKey{}) && state == instance.Impaired {
							break // visible to the client that requested it
						}
						s.cloud.become(id, state)
						delete(onDemand, id)
					}
					s.finish()
					for _, c := range s.cloud.takeCalls() {
						if c.group != key && !all {
							t.Fatalf("step %d: %v, but only %s was enqueued", step, c, key)
						}
					}
					for _, key := range keys {
						wanted := 0
						if group, found := s.groups.Get(key); found {
							wanted = int(group.Size)
						}
						for _, of := range onDemand {
							if of == key {
								wanted++
							}
						}
						if got := s.cloud.List(key); len(got) != wanted {
							t.Fatalf("step %d: %s has %v, want %d", step, key, got, wanted)
						}
					}
					if err := s.announced(); err != nil {
						t.Fatalf("step %d: %v", step, err)
					}
				}
			})
		})
	}
}

// finish lets the cloud and the operator finish their work until nothing is
// left.
func (s *server) finish() {
	for {
		s.cloud.Mu.Lock()
		before := len(s.cloud.calls)
		s.cloud.Mu.Unlock()
		s.cloud.settle()
		synctest.Wait()
		draining := s.instances.Draining("default")
		for _, i := range draining {
			s.acknowledge(i.Key(), i.ID)
		}
		s.cloud.Mu.Lock()
		after := len(s.cloud.calls)
		moving := slices.ContainsFunc(slices.Collect(maps.Values(s.cloud.VMs)), func(vm instance.VM) bool {
			return vm.State != instance.Running
		})
		s.cloud.Mu.Unlock()
		if before == after && len(draining) == 0 && !moving {
			return
		}
	}
}

// announced checks that operators received one event for every deleted
// instance.
func (s *server) announced() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	times := map[string]int{}
	for _, e := range s.events {
		if e.status == "deleted" {
			times[e.id]++
		}
	}
	for id := range s.cloud.groups {
		want := 1
		if _, there := s.cloud.Get(id); there {
			want = 0
		}
		if times[id] != want {
			return fmt.Errorf("received %d events that %s is deleted, want %d", times[id], id, want)
		}
	}
	return nil
}
