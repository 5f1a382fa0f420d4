// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
)

// withRegistrationTimeout returns a configuration with a registration timeout
// of five minutes.
func withRegistrationTimeout() *config.Config {
	c := newConfig()
	c.Shard.GarbageCollection.RegistrationTimeout = 5 * time.Minute
	return c
}

// takeCreates returns the number of create calls since its last call.
func (s *server) takeCreates() int {
	takeCreates := 0
	for _, c := range s.cloud.takeCalls() {
		if c.operation == "create" {
			takeCreates++
		}
	}
	return takeCreates
}

func TestWaitingCreationsAreNotGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := withRegistrationTimeout()
		c.Shard.CreateRateLimit = 30 * time.Second
		s := start(t, c)
		s.scale(workersKey, 0)
		const many = 30
		for range many {
			s.onDemand(workersKey, func(*instance.Record) {})
		}
		s.pass(many * c.Shard.CreateRateLimit)
		s.settle()
		if got := len(s.cloud.ids(workersKey)); got != many {
			t.Errorf("the cloud has %d instances, want %d", got, many)
		}
		s.want()
	})
}

func TestCreationsOutliveAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, withRegistrationTimeout())
		s.cloud.rejectCalls(noCreates)
		s.scale(workersKey, 1)
		s.onDemand(workersKey, func(*instance.Record) {})
		var accepted []string
		for _, i := range s.instances.List(workersKey) {
			accepted = append(accepted, i.ID)
		}
		slices.Sort(accepted)
		s.stop()
		s.pass(time.Hour)
		s.cloud.rejectCalls(nil)
		s.lead()
		s.settle()
		if got := s.cloud.ids(workersKey); !slices.Equal(got, accepted) {
			t.Errorf("the cloud has %q, want %q", got, accepted)
		}
		s.want()
	})
}

func TestFoundInstanceIsTriedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, withRegistrationTimeout())
		s.scale(workersKey, 0)
		s.cloud.limit(map[string]int{"subnet-1": 0, "subnet-2": 0})
		rejected := s.onDemand(workersKey, func(*instance.Record) {})
		s.stop()
		s.pass(time.Hour)
		s.takeFailures()
		s.lead()
		s.want("deleting "+rejected+" unregistered", "deleted "+rejected+" unregistered")
		if failures := s.takeFailures(); len(failures) != 1 || failures[0].id != rejected {
			t.Errorf("reported %+v, want one attempt", failures)
		}
		if len(s.reconciler.attempts.last) != 0 {
			t.Errorf("there are attempts %v", s.reconciler.attempts.last)
		}
	})
}

func TestAttemptBeforeTheTimeoutIsNotTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, withRegistrationTimeout())
		s.scale(workersKey, 0)
		s.cloud.rejectCalls(noCreates)
		id := s.onDemand(workersKey, func(*instance.Record) {})
		s.pass(5*time.Minute - time.Nanosecond)
		s.cloud.rejectCalls(nil)
		s.pass(time.Nanosecond)
		if got := s.cloud.ids(workersKey); !slices.Equal(got, []string{id}) {
			t.Errorf("the cloud has %q, want %s", got, id)
		}
		s.want()
	})
}

func TestSizeMayChangeWhileAGroupGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.run(workersKey, 1)
		calls := 0
		s.beforeCall = func() {
			if calls++; calls == 10 {
				if _, _, err := s.groups.Upsert(t.Context(), workersKey, sizeOf(1)); err != nil {
					t.Error(err)
				}
			}
		}
		s.scale(workersKey, 500)
		s.beforeCall = nil
		if got := s.takeCreates(); got > maxCreations {
			t.Errorf("%d instances were created, most of them after the size was 1 again", got)
		}
	})
}

func TestLargeGroupTakesSeveralReconciliations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		const many = maxCreations + 1
		s.scale(workersKey, many)
		if got := s.takeCreates(); got != many {
			t.Errorf("%d instances were created, want %d", got, many)
		}
		s.cloud.rejectCalls(noCreates)
		for range many {
			s.onDemand(workersKey, func(*instance.Record) {})
		}
		s.cloud.rejectCalls(nil)
		s.pass(maxBackoff)
		if got := len(s.cloud.ids(workersKey)); got != 2*many {
			t.Errorf("the cloud has %d instances, want %d and as many on-demand ones", got, many)
		}
	})
}

func TestManyFailuresDoNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.scale(workersKey, 0)
		s.cloud.limit(map[string]int{"subnet-3": 0})
		for range maxCreations + 1 {
			s.onDemand(workersKey, func(record *instance.Record) { record.SubnetPool = "second" })
		}
		id := s.onDemand(workersKey, func(*instance.Record) {})
		if got := s.cloud.ids(workersKey); !slices.Equal(got, []string{id}) {
			t.Errorf("the cloud has %q, want %s", got, id)
		}
	})
}
