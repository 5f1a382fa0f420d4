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

// impatient gives instances five minutes to become known to the cloud.
func impatient() *config.Config {
	c := newConfig()
	c.Shard.GarbageCollection.RegistrationTimeout = 5 * time.Minute
	return c
}

// creates counts the orders since it was called last.
func (s *server) creates() int {
	creates := 0
	for _, c := range s.cloud.takeCalls() {
		if c.operation == "create" {
			creates++
		}
	}
	return creates
}

func TestOrdersThatWaitForTheirTurnAreNotGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := impatient()
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

func TestOrdersOutliveAServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, impatient())
		s.cloud.refuseCalls(noCreates)
		s.scale(workersKey, 1)
		s.onDemand(workersKey, func(*instance.Record) {})
		var accepted []string
		for _, i := range s.instances.List(workersKey) {
			accepted = append(accepted, i.ID)
		}
		slices.Sort(accepted)
		s.end()
		s.pass(time.Hour)
		s.cloud.refuseCalls(nil)
		s.lead()
		s.settle()
		if got := s.cloud.ids(workersKey); !slices.Equal(got, accepted) {
			t.Errorf("the cloud has %q, want %q", got, accepted)
		}
		s.want()
	})
}

func TestWhatIsFoundIsTriedOnceAndGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, impatient())
		s.scale(workersKey, 0)
		s.cloud.limit(map[string]int{"subnet-1": 0, "subnet-2": 0})
		full := s.onDemand(workersKey, func(*instance.Record) {})
		s.end()
		s.pass(time.Hour)
		s.takeFailures()
		s.lead()
		s.want("deleting "+full+" unregistered", "deleted "+full+" unregistered")
		if told := s.takeFailures(); len(told) != 1 || told[0].id != full {
			t.Errorf("told of %+v, want one attempt", told)
		}
		if len(s.reconciler.attempts.last) != 0 {
			t.Errorf("remembers %v", s.reconciler.attempts.last)
		}
	})
}

func TestAnAttemptBeforeTheTimeoutIsNotTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, impatient())
		s.scale(workersKey, 0)
		s.cloud.refuseCalls(noCreates)
		id := s.onDemand(workersKey, func(*instance.Record) {})
		s.pass(5*time.Minute - time.Nanosecond)
		s.cloud.refuseCalls(nil)
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
		s.bound = func() {
			if calls++; calls == 10 {
				if _, _, err := s.groups.Upsert(t.Context(), workersKey, sizeOf(1)); err != nil {
					t.Error(err)
				}
			}
		}
		s.scale(workersKey, 500)
		s.bound = nil
		if got := s.creates(); got > ordersPerRound {
			t.Errorf("%d instances were ordered, most of them after the size was 1 again", got)
		}
	})
}

func TestManyAreOrderedInManyRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		const many = ordersPerRound + 1
		s.scale(workersKey, many)
		if got := s.creates(); got != many {
			t.Errorf("%d instances were ordered, want %d", got, many)
		}
		s.cloud.refuseCalls(noCreates)
		for range many {
			s.onDemand(workersKey, func(*instance.Record) {})
		}
		s.cloud.refuseCalls(nil)
		s.pass(retryAtMost)
		if got := len(s.cloud.ids(workersKey)); got != 2*many {
			t.Errorf("the cloud has %d instances, want %d and as many on-demand ones", got, many)
		}
	})
}

func TestManyThatFailDoNotKeepOthersWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.scale(workersKey, 0)
		s.cloud.limit(map[string]int{"subnet-3": 0})
		for range ordersPerRound + 1 {
			s.onDemand(workersKey, func(record *instance.Record) { record.SubnetPool = "second" })
		}
		id := s.onDemand(workersKey, func(*instance.Record) {})
		if got := s.cloud.ids(workersKey); !slices.Equal(got, []string{id}) {
			t.Errorf("the cloud has %q, want %s", got, id)
		}
	})
}
