// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// drift changes the instance type of the template, so that existing instances
// drift.
func drift(c *config.Config) {
	worker := c.Templates["worker"]
	worker.InstanceType = "large"
	c.Templates["worker"] = worker
}

func TestDrainEndsWhenAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		old := s.run(workersKey, 1)[0]

		s.reconfigure(drift)
		// The replacement is created before the drain begins.
		s.wantCalls("create default/workers")
		s.want("draining " + old + " config-drift")
		i, _ := s.instances.Get(old)
		if want := i.Drain.StartedAt.Add(5 * time.Minute); !i.Drain.DeleteAt.Equal(want) {
			t.Errorf("the drain ends at %v, want %v", i.Drain.DeleteAt, want)
		}
		s.pass(4 * time.Minute)
		s.wantCalls()

		s.acknowledge(workersKey, old)
		s.wantCalls("delete default/workers")
		s.want("deleting " + old + " config-drift")
		s.settle()
		s.want("deleted " + old + " config-drift")
		if ids := s.cloud.ids(workersKey); len(ids) != 1 || ids[0] == old {
			t.Errorf("the cloud has %v", ids)
		}
		s.wantCalls()
		s.pass(time.Hour)
		s.wantCalls()
	})
}

func TestDrainEndsAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		old := s.run(workersKey, 1)[0]
		s.reconfigure(drift)
		s.want("draining " + old + " config-drift")
		s.settle()
		s.cloud.takeCalls()

		s.pass(5*time.Minute - time.Nanosecond)
		s.wantCalls()
		s.want()
		s.pass(time.Nanosecond)
		s.wantCalls("delete default/workers")
		s.want("deleting " + old + " config-drift")
	})
}

func TestNoDrainTimeoutMeansNoDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		old := s.run(noDrainKey, 1)[0]
		s.reconfigure(drift)
		s.wantCalls("create default/nodrain", "delete default/nodrain")
		s.want("deleting " + old + " config-drift")
		s.settle()
		s.want("deleted " + old + " config-drift")
	})
}

func TestDownInstancesAreNotDrained(t *testing.T) {
	for name, breaks := range map[string]func(*server, string){
		"stopped": func(s *server, id string) { s.cloud.become(id, instance.Stopped) },
		"failed":  func(s *server, id string) { s.cloud.become(id, instance.Failed) },
		"lost":    func(s *server, id string) { s.cloud.vanish(id) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := start(t, newConfig())
				ids := s.run(workersKey, 2)
				breaks(s, ids[1])
				synctest.Wait()
				calls := s.cloud.takeCalls()
				if len(calls) != 2 || calls[0].operation != "create" || calls[1].operation != "delete" || calls[1].id != ids[1] {
					t.Errorf("called %v", calls)
				}
				s.settle()
				s.want("deleting "+ids[1]+" unhealthy", "deleted "+ids[1]+" unhealthy")
				if left := s.cloud.ids(workersKey); len(left) != 2 || left[0] != ids[0] {
					t.Errorf("the cloud has %v", left)
				}
			})
		})
	}
}

func TestImpairedInstancesAreDrained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		ids := s.run(workersKey, 2)
		s.cloud.become(ids[0], instance.Impaired)
		s.cloud.become(ids[1], instance.Impaired)
		synctest.Wait()
		s.wantCalls("create default/workers")
		s.want("draining " + ids[0] + " unhealthy")
		// An instance that fails while it drains has nothing left to drain.
		s.cloud.vanish(ids[0])
		synctest.Wait()
		s.want("deleting "+ids[0]+" unhealthy", "deleted "+ids[0]+" unhealthy", "draining "+ids[1]+" unhealthy")
	})
}

func TestDeletedGroupDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConfig()
		c.Shard.DefaultDrainTimeout = 7 * time.Minute
		s := start(t, c)
		ids := s.run(workersKey, 2)
		kept := s.onDemand(workersKey, func(*instance.Record) {})
		s.settle()
		s.remove(workersKey)
		s.want("draining "+ids[0]+" scale-down", "draining "+ids[1]+" scale-down")
		s.acknowledge(workersKey, ids[1])
		s.want("deleting " + ids[1] + " scale-down")
		s.settle()
		s.want("deleted " + ids[1] + " scale-down")
		s.pass(7 * time.Minute)
		s.settle()
		s.want("deleting "+ids[0]+" scale-down", "deleted "+ids[0]+" scale-down")
		if left := s.cloud.ids(workersKey); len(left) != 1 || left[0] != kept {
			t.Errorf("the cloud has %v, want the on-demand instance %s", left, kept)
		}
	})
}

// TestDeletedGroupDrainsAsBefore: a group with a drain timeout of its own leaves the
// configuration and is deleted.
func TestDeletedGroupDrainsAsBefore(t *testing.T) {
	for _, timeout := range []time.Duration{0, 30 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			with := func(c *config.Config) {
				c.Groups["default"]["own"] = config.Group{Template: "worker", Size: new(int32(1)), DrainTimeout: new(timeout)}
			}
			c := newConfig()
			with(c)
			s := start(t, c)
			key := instance.GroupKey{Tenant: "default", Group: "own"}
			id := s.run(key, 1)[0]
			s.reconfigure(func(*config.Config) {})
			s.remove(key)
			s.remove(key)
			s.stop()
			s.lead()
			if timeout > 0 {
				s.want("draining " + id + " scale-down")
				s.pass(timeout - time.Second)
				s.want()
				s.pass(time.Second)
			}
			s.settle()
			s.want("deleting "+id+" scale-down", "deleted "+id+" scale-down")
		})
	}
}

func TestAgesUseTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConfig()
		c.Shard.Expiry = config.Expiry{ForcedAge: 3 * time.Hour, OnDemandAge: 2 * time.Hour}
		s := start(t, c)
		began := time.Now()
		ids := s.run(workersKey, 2)
		single := s.onDemand(workersKey, func(*instance.Record) {})
		s.settle()
		s.pass(time.Until(began.Add(2*time.Hour - time.Nanosecond)))
		s.want()
		s.pass(time.Nanosecond)
		s.want("draining " + single + " expired")
		s.acknowledge(workersKey, single)
		s.settle()
		s.want("deleting "+single+" expired", "deleted "+single+" expired")

		s.pass(time.Until(began.Add(3*time.Hour - time.Nanosecond)))
		s.want()
		s.pass(time.Nanosecond)
		// All at once: size + 1 does not apply here.
		s.want("draining "+ids[0]+" expired", "draining "+ids[1]+" expired")
		if got := len(s.cloud.ids(workersKey)); got != 4 {
			t.Errorf("the cloud has %d instances, want two and their replacements", got)
		}
	})
}

// TestInstanceThatDoesNotTerminate blocks rotation only for a while, and is reported.
func TestInstanceThatDoesNotTerminate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		stuck := s.run(workersKey, 3)[0]
		s.cloud.become(stuck, instance.Terminating)
		synctest.Wait()
		for _, id := range s.cloud.ids(workersKey) {
			if id != stuck {
				s.cloud.become(id, instance.Running)
			}
		}
		synctest.Wait()
		s.takeFailures()
		s.cloud.takeCalls()
		s.reconfigure(func(c *config.Config) {
			worker := c.Templates["worker"]
			worker.Args = map[string]any{"a": "b"}
			c.Templates["worker"] = worker
		})
		s.wantCalls()
		s.pass(minStuckTimeout)
		s.wantCalls("create default/workers")
		failures := s.takeFailures()
		if len(failures) != 1 || failures[0].id != stuck {
			t.Errorf("reported %+v", failures)
		}
		s.pass(stuckReportInterval)
		if failures := s.takeFailures(); len(failures) != 1 {
			t.Errorf("reported %+v after an hour", failures)
		}
	})
}

// fakeTargets has all instances as targets except removed ones.
type fakeTargets struct {
	mu      sync.Mutex
	removed map[string]bool
}

func (f *fakeTargets) Waits(i *instance.Instance) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.removed[i.ID]
}

func (f *fakeTargets) remove(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removed[id] = true
}

// startWithTargets starts a server whose instances are targets.
func startWithTargets(t *testing.T) (*server, *fakeTargets) {
	t.Helper()
	s := start(t, newConfig())
	targets := &fakeTargets{removed: map[string]bool{}}
	s.targets = targets
	s.stop()
	s.lead()
	return s, targets
}

const terminatedTargets = "nstance_server_terminated_targets"

func TestTerminationWaitsForLoadBalancers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, targets := startWithTargets(t)
		old := s.run(workersKey, 1)[0]
		s.reconfigure(drift)
		s.settle()
		s.cloud.takeCalls()
		s.acknowledge(workersKey, old)
		s.pass(time.Minute)
		s.wantCalls()
		targets.remove(old)
		s.reconcile(workersKey)
		s.wantCalls("delete default/workers")
		wantMetrics(t, s.metrics, []string{terminatedTargets}, "terminated_targets_total{} 0")
	})
}

// An operator may acknowledge a drain that another leader has begun, before this one has
// decided on it again.
func TestLostDrainWaitsForLoadBalancers(t *testing.T) {
	for name, removed := range map[string]bool{"deregistered": true, "still a target": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, targets := startWithTargets(t)
				id := s.run(workersKey, 1)[0]
				s.acknowledge(workersKey, id)
				s.pass(5*time.Minute - time.Second)
				assert.NotContains(t, describeCalls(s.cloud.takeCalls()), "delete default/workers")
				if removed {
					targets.remove(id)
					s.reconcile(workersKey)
				} else {
					s.pass(time.Second)
				}
				assert.Contains(t, describeCalls(s.cloud.takeCalls()), "delete default/workers")
			})
		})
	}
}

func TestTerminationWaitsUntilTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := startWithTargets(t)
		old := s.run(workersKey, 1)[0]
		s.reconfigure(drift)
		i, _ := s.instances.Get(old)
		deadline := i.Drain.DeleteAt
		s.settle()
		s.cloud.takeCalls()
		s.acknowledge(workersKey, old)
		s.cloud.rejectNext("delete", 2)
		s.pass(10 * time.Minute)
		calls := s.cloud.takeCalls()
		require.Equal(t, slices.Repeat([]string{"delete default/workers"}, 3), describeCalls(calls))
		assert.Equal(t, deadline, calls[0].at, "when it is terminated")
		wantMetrics(t, s.metrics, []string{terminatedTargets}, "terminated_targets_total{} 1")
	})
}

// A client that requests a deletion drains the Node before or not at all. The instance has as
// much time as a drain would take, even if the leader changes.
func TestRequestedDeletionWaitsForLoadBalancers(t *testing.T) {
	for name, removed := range map[string]bool{"deregistered": true, "still a target": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, targets := startWithTargets(t)
				s.scale(workersKey, 0)
				id := s.onDemand(workersKey, func(*instance.Record) {})
				s.settle()
				s.cloud.takeCalls()
				require.NoError(t, s.instances.RequestDeletion(t.Context(), id))
				s.reconcile(workersKey)
				s.pass(time.Minute)
				s.wantCalls()
				if removed {
					targets.remove(id)
					s.reconcile(workersKey)
					s.wantCalls("delete default/workers")
					return
				}
				s.stop()
				s.lead()
				s.reconcile(workersKey)
				s.pass(5*time.Minute - time.Second)
				s.wantCalls()
				s.pass(time.Second)
				s.wantCalls("delete default/workers")
			})
		})
	}
}

// Nothing runs on an instance that is down: it has no connections to end. An instance without
// a drain timeout has no time to wait.
func TestTerminationThatDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := startWithTargets(t)
		id := s.run(workersKey, 1)[0]
		s.cloud.become(id, instance.Stopped)
		synctest.Wait()
		assert.Contains(t, describeCalls(s.cloud.takeCalls()), "delete default/workers")
	})
	synctest.Test(t, func(t *testing.T) {
		s, _ := startWithTargets(t)
		s.scale(workersKey, 0)
		id := s.onDemand(workersKey, func(*instance.Record) {})
		s.settle()
		require.NoError(t, s.instances.RequestDeletion(t.Context(), id))
		s.reconcile(workersKey)
		s.cloud.takeCalls()
		s.cloud.become(id, instance.Stopped)
		synctest.Wait()
		s.wantCalls("delete default/workers")
	})
	synctest.Test(t, func(t *testing.T) {
		s, _ := startWithTargets(t)
		s.reconfigure(func(c *config.Config) { c.Groups["default"]["nodrain"] = noDrainGroup(1) })
		s.settle()
		s.cloud.takeCalls()
		s.reconfigure(func(c *config.Config) { c.Groups["default"]["nodrain"] = noDrainGroup(0) })
		s.wantCalls("delete default/nodrain")
	})
}

func noDrainGroup(size int32) config.Group {
	return config.Group{Template: "worker", Size: &size, DrainTimeout: new(time.Duration(0))}
}
