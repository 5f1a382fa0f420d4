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

// fakeTargets has all instances as targets but those that are removed.
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

// A client that requests a deletion drains the Node before or not at all. The instance has
// as long as a drain would take, also with another leader.
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

// Nothing runs on an instance that is down: it has no connections to end. One without a
// drain timeout has no time.
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
