// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/puidv7"
)

func TestGroupReachesItsSize(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.scale(workersKey, 2)
		s.wantCalls("create default/workers", "create default/workers")
		for _, i := range s.instances.List(workersKey) {
			id, err := puidv7.Parse(i.ID)
			group, _ := s.groups.Get(workersKey)
			if err != nil || id.Prefix != "knd" || i.InfraConfigHash != group.InfraConfigHash || !i.CreatedAt.Equal(time.Now()) {
				t.Errorf("created %+v, %v", i, err)
			}
		}
		s.settle()
		for _, i := range s.instances.List(workersKey) {
			if i.ProviderID != "vm-"+i.ID || i.State != instance.Running {
				t.Errorf("got %+v", i)
			}
		}
		// Without changes there are no actions.
		s.pass(24 * time.Hour)
		s.wantCalls()
		// An instance that is deleted externally is replaced.
		s.cloud.vanish(s.cloud.ids(workersKey)[0])
		synctest.Wait()
		s.wantCalls("create default/workers", "delete default/workers")
	})
}

func TestCreateRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConfig()
		c.Shard.CreateRateLimit = time.Second
		s := start(t, c)
		failing := s.run(otherKey, 1)[0]
		s.pass(time.Minute)
		began := time.Now()
		s.cloud.rejectNext("create", 1)
		for _, key := range []instance.GroupKey{workersKey, noDrainKey, otherKey} {
			s.scale(key, 3)
		}
		// A deletion is not rate-limited.
		s.cloud.become(failing, instance.Failed)
		synctest.Wait()
		if i, _ := s.instances.Get(failing); i.DeleteReason == "" && !i.Down() {
			t.Errorf("%+v is not being deleted", i)
		}
		s.pass(time.Minute)
		var taken []time.Time
		rejected := 0
		for _, c := range s.cloud.takeCalls() {
			switch {
			case c.operation != "create":
			case rejected == 0:
				rejected++ // a rejected creation delays no other one
			default:
				taken = append(taken, c.at)
			}
		}
		// The desired total is nine. One of them existed and is replaced.
		if len(taken) != 9 {
			t.Fatalf("%d instances were created, want 9", len(taken))
		}
		for n, at := range taken[1:] {
			if gap := at.Sub(taken[n]); gap < time.Second {
				t.Errorf("%v between two creations", gap)
			}
		}
		if took := taken[8].Sub(began); took > 15*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestCreateLimiter(t *testing.T) {
	var p createLimiter
	begin := func(at, want time.Duration) func(time.Time, bool) {
		t.Helper()
		done, wait := p.begin(time.Second, planTime.Add(at))
		if wait != want || (done == nil) != (want > 0) {
			t.Errorf("at %v: waits %v, want %v", at, wait, want)
		}
		return done
	}
	const ms = time.Millisecond
	first := begin(0, 0)
	begin(10*ms, time.Second)
	// A rejected creation does not delay another creation.
	first(planTime.Add(20*ms), false)
	second := begin(20*ms, 0)
	second(planTime.Add(50*ms), true)
	// The gap applies between two successful creations.
	begin(100*ms, 950*ms)
	begin(1049*ms, ms)
	third := begin(1050*ms, 0)
	third(planTime.Add(1050*ms), true)
	// Without a gap there is no delay.
	if _, wait := p.begin(0, planTime.Add(1050*ms)); wait != 0 {
		t.Errorf("waits %v without a gap", wait)
	}
	begin(2050*ms, 0)
}

func TestNoRecordIfCreationIsImpossible(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConfig()
		c.Shard.CreateRateLimit = time.Minute
		s := start(t, c)
		s.scale(workersKey, 5)
		if got := len(s.instances.List(workersKey)); got != 1 {
			t.Errorf("%d instances have a record, want the one that was created", got)
		}
	})
}

// TestSubnetOfUnknownCapacity: the other subnets are tried.
func TestSubnetOfUnknownCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.cloud.unknownCapacity = "subnet-1"
		s.cloud.limit(map[string]int{"subnet-2": 1})
		s.scale(workersKey, 2)
		ids := s.cloud.ids(workersKey)
		if len(ids) != 1 || s.cloud.subnetOf(ids[0]) != "subnet-2" {
			t.Errorf("there are instances %q", ids)
		}
		failures := s.takeFailures()
		if len(failures) == 0 || failures[0].text != "create an instance: read the capacity of subnet subnet-1: "+errBusy.Error() {
			t.Errorf("reported %+v", failures)
		}
	})
}

func TestSubnetsAreFilledInListedOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.cloud.limit(map[string]int{"subnet-1": 2, "subnet-2": 1})
		s.scale(workersKey, 2)
		s.scale(workersKey, 5)
		var used []string
		for _, id := range s.cloud.ids(workersKey) {
			used = append(used, s.cloud.subnetOf(id))
		}
		if want := []string{"subnet-1", "subnet-1", "subnet-2"}; !slices.Equal(used, want) {
			t.Errorf("used %q, want %q", used, want)
		}
		failures := s.takeFailures()
		if len(failures) == 0 || failures[0].group != workersKey || failures[0].text != "create an instance: out of capacity: no subnet of pool pool has capacity left" {
			t.Errorf("reported %+v", failures)
		}
		if got := len(s.instances.List(workersKey)); got != 3 {
			t.Errorf("%d instances have a record, want the three that fit", got)
		}
		// An on-demand instance may have its own pool.
		id := s.onDemand(workersKey, func(record *instance.Record) { record.SubnetPool = "second" })
		if got := s.cloud.subnetOf(id); got != "subnet-3" {
			t.Errorf("is in %q, want subnet-3", got)
		}
		s.cloud.limit(nil)
		s.pass(time.Minute)
		if got := len(s.cloud.ids(workersKey)); got != 6 {
			t.Errorf("the cloud has %d instances when there is room, want 5 and the on-demand one", got)
		}
	})
}

func TestErrorsDoNotBlockOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.cloud.rejectCalls(func(c call) error {
			if c.group == workersKey {
				return errBusy
			}
			return nil
		})
		s.scale(workersKey, 4)
		s.scale(otherKey, 1)
		if got := len(s.cloud.ids(otherKey)); got != 1 {
			t.Errorf("the other group has %d instances, want 1", got)
		}
	})
}

func TestErrorsAreRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.cloud.rejectNext("create", 3)
		began := time.Now()
		s.scale(workersKey, 2)
		s.pass(time.Hour)
		var at []time.Duration
		for _, c := range s.cloud.takeCalls() {
			at = append(at, c.at.Sub(began))
		}
		// Retries after 0.2 s, 0.4 s and 0.8 s, then all at once.
		const ms = time.Millisecond
		if want := []time.Duration{0, 200 * ms, 600 * ms, 1400 * ms, 1400 * ms}; !slices.Equal(at, want) {
			t.Errorf("called at %v, want %v", at, want)
		}
		failures := s.takeFailures()
		if len(failures) != 3 {
			t.Errorf("reported %+v, want three failures", failures)
		}
		for _, f := range failures {
			if f.group != workersKey || f.id != s.cloud.ids(workersKey)[0] || f.text != "create an instance: the cloud is busy" {
				t.Errorf("reported %+v", f)
			}
		}
		// Each attempt is for the same instance.
		if got := len(s.instances.List(workersKey)); got != 2 {
			t.Errorf("%d instances have a record, want 2", got)
		}

		// The backoff starts again after a success.
		s.settle()
		s.remove(workersKey)
		id := s.cloud.ids(workersKey)[0]
		s.cloud.takeCalls()
		s.cloud.rejectNext("delete", 1)
		began = time.Now()
		s.acknowledge(workersKey, id)
		s.pass(time.Minute)
		calls := s.cloud.takeCalls()
		if len(calls) != 2 || !calls[0].at.Equal(began) || calls[1].at.Sub(began) != minBackoff || calls[1].id != id {
			t.Errorf("called %+v", calls)
		}
		if failures := s.takeFailures(); len(failures) != 1 || failures[0].id != id || !strings.HasPrefix(failures[0].text, "delete instance "+id) {
			t.Errorf("reported %+v", failures)
		}
	})
}

func TestOneFailedCreationStopsTheGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		ids := s.run(workersKey, 3)
		s.cloud.rejectCalls(noCreates)
		s.cloud.vanish(ids[0], ids[1])
		synctest.Wait()
		// An instance that is down is deleted nevertheless, and no second
		// instance is tried.
		calls := describeCalls(s.cloud.takeCalls())
		if want := []string{"create default/workers", "delete default/workers", "delete default/workers"}; !slices.Equal(calls[:3], want) {
			t.Errorf("called %q first, want %q", calls, want)
		}
		if got := len(s.instances.List(workersKey)); got != 2 {
			t.Errorf("%d instances have a record, want the running and one waiting", got)
		}
	})
}

func TestOnDemandInstancesFailIndependently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.run(workersKey, 1)
		s.cloud.limit(map[string]int{"subnet-3": 0})
		blocked := s.onDemand(workersKey, func(record *instance.Record) { record.SubnetPool = "second" })
		good := s.onDemand(workersKey, func(*instance.Record) {})
		ids := s.cloud.ids(workersKey)
		if slices.Contains(ids, blocked) || !slices.Contains(ids, good) {
			t.Errorf("the cloud has %v, want %s and not %s", ids, good, blocked)
		}
		s.scale(workersKey, 2)
		if got := len(s.cloud.ids(workersKey)); got != 3 {
			t.Errorf("the cloud has %d instances, want 3", got)
		}
	})
}

func TestDrainsWaitForReplacements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		old := s.run(workersKey, 1)[0]
		s.cloud.rejectNext("create", 5)
		s.reconfigure(drift)
		// Five attempts take 0.2 s, 0.4 s, 0.8 s and 1.6 s, the sixth 3.2 s
		// more.
		s.pass(6 * time.Second)
		s.want()
		s.pass(time.Second)
		s.want("draining " + old + " config-drift")
	})
}

func TestUncreatedInstanceIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newConfig()
		c.Shard.GarbageCollection.RegistrationTimeout = 5 * time.Minute
		s := start(t, c)
		s.cloud.rejectCalls(noCreates)
		s.scale(workersKey, 1)
		first := s.instances.List(workersKey)[0].ID
		s.pass(5*time.Minute - time.Nanosecond)
		s.want()
		s.pass(time.Nanosecond)
		s.want("deleting "+first+" unregistered", "deleted "+first+" unregistered")
		list := s.instances.List(workersKey)
		if len(list) != 1 || list[0].ID == first {
			t.Errorf("there is %+v, want another one", list)
		}
	})
}

func TestDeletionIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		id := s.run(workersKey, 1)[0]
		// The deletion was decided elsewhere, without an event.
		require.NoError(t, s.instances.SetDeleting(t.Context(), id, instance.ReasonRequested))
		s.reconcile(workersKey)
		s.wantCalls("delete default/workers", "create default/workers")
		s.want("deleting " + id + " requested")
		// The deletion is repeated for a cloud that has lost it, even if it
		// reports no change.
		s.cloud.become(id, instance.Running)
		synctest.Wait()
		s.wantCalls("delete default/workers")
		s.cloud.put(instance.VM{ID: id, Group: workersKey, State: instance.Running})
		s.pass(maxBackoff)
		s.wantCalls("delete default/workers")
		s.takeEvents()
		s.settle()
		s.want("deleted " + id + " requested")
	})
}

func TestCurrentConfigurationIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		id := s.run(workersKey, 1)[0]
		s.pass(2 * time.Hour)
		s.want()
		s.reconfigure(func(c *config.Config) { c.Shard.Expiry.EligibleAge = time.Hour })
		s.want("draining " + id + " expired")
	})
}

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

// TestManyOnDemandRequestsWithoutCapacity: each new request tries one instance, not all that
// wait.
func TestManyOnDemandRequestsWithoutCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.scale(workersKey, 0)
		s.cloud.rejectCalls(noCreates)
		for range 100 {
			s.onDemand(workersKey, func(*instance.Record) {})
		}
		assert.LessOrEqual(t, len(s.cloud.takeCalls()), 10)
		// Another kind of instance is tried at once.
		s.onDemand(workersKey, func(record *instance.Record) { record.InstanceType = "large" })
		s.wantCalls("create default/workers")
		s.cloud.rejectCalls(func(call) error { return nil })
		s.pass(2 * maxOnDemandDelay)
		assert.Len(t, s.cloud.ids(workersKey), 101)
	})
}
