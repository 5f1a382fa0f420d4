// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
)

// acceptedLosses are the losses that a test has accepted.
type acceptedLosses struct{ keys sync.Map }

func (a *acceptedLosses) IsAccepted(_ context.Context, key instance.GroupKey) (bool, error) {
	_, accepted := a.keys.Load(key)
	return accepted, nil
}

func (a *acceptedLosses) Reset(_ context.Context, key instance.GroupKey) error {
	a.keys.Delete(key)
	return nil
}

// vanished runs a group and lets instances disappear from the provider at once.
func vanished(t *testing.T, size, lost int) (s *server, kept []string) {
	t.Helper()
	s = start(t, newConfig())
	ids := s.run(workersKey, size)
	s.reconciler.Losses = new(acceptedLosses)
	s.cloud.vanish(ids[:lost]...)
	synctest.Wait()
	return s, ids[lost:]
}

func (s *server) creations() int {
	return len(slices.DeleteFunc(describeCalls(s.cloud.takeCalls()), func(call string) bool { return call != "create default/workers" }))
}

// TestFewMissingInstancesAreReplaced at once.
func TestFewMissingInstancesAreReplaced(t *testing.T) {
	for size, lost := range map[int]int{1: 1, 2: 2, 3: 2, 10: 3} {
		synctest.Test(t, func(t *testing.T) {
			s, _ := vanished(t, size, lost)
			assert.Equal(t, lost, s.creations(), "%d of %d", lost, size)
			assert.Empty(t, s.failures)
		})
	}
}

// TestInstancesThatHaveEndedAreReplaced at once, however many they are: the provider has
// reported their end, so it cannot be at fault. Operators get the reason of each, once.
func TestInstancesThatHaveEndedAreReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		ids := s.run(workersKey, 10)
		s.reconciler.Losses = new(acceptedLosses)
		const reason = "the service has terminated the instance: Spot instance termination"
		s.cloud.end(reason, ids[:7]...)
		synctest.Wait()
		assert.Equal(t, 7, s.creations())
		want := map[string]string{}
		for _, id := range ids[:7] {
			want[id] = "instance " + id + " runs no more: " + reason
		}
		s.settle()
		s.pass(time.Hour)
		got := map[string]string{}
		for _, f := range s.failures {
			got[f.id] = f.text
		}
		assert.Equal(t, want, got)
		assert.Len(t, s.failures, 7, "each is reported once")
	})
}

// TestAZoneThatIsReclaimedWhileNoServerLeads: the next leader replaces all spot instances, with the
// cache of its machine or without it, and terminates nothing that runs.
func TestAZoneThatIsReclaimedWhileNoServerLeads(t *testing.T) {
	for _, cached := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := start(t, newConfig())
			healthy, spot := s.run(otherKey, 3), s.run(workersKey, 10)
			s.stop()
			if !cached {
				s.loseCache()
			}
			s.cloud.end("the service has terminated the instance: Spot instance termination", spot...)
			s.pass(2 * time.Hour)
			s.losses = new(acceptedLosses)
			s.lead()
			s.settle()
			assert.Equal(t, 10, s.creations(), "cached: %t", cached)
			assert.Len(t, s.failures, 10, "each end is reported once")
			s.pass(time.Hour)
			s.settle()
			running := s.cloud.ids(workersKey)
			assert.Len(t, running, 10)
			for _, id := range spot {
				assert.NotContains(t, running, id)
			}
			assert.ElementsMatch(t, healthy, s.cloud.ids(otherKey))
			assert.Zero(t, s.creations(), "later creations")
		})
	}
}

// TestADrainedInstanceThatEnds needs no report: the drain was because of that.
func TestADrainedInstanceThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		id := s.run(workersKey, 1)[0]
		s.reconfigure(drift)
		s.settle()
		i, _ := s.instances.Get(id)
		require.NotNil(t, i.Drain)
		s.cloud.end("the instance is stopped", id)
		synctest.Wait()
		assert.Empty(t, s.failures)
	})
}

// TestMissingInstanceIsDeletedByItsID: an instance that is given up may be hidden only. If
// the provider cannot delete it, operators get the error, and the instance is drained when
// it is listed again.
func TestMissingInstanceIsDeletedByItsID(t *testing.T) {
	for _, rejected := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := start(t, withCollection())
			lost := s.run(workersKey, 3)[2]
			vm, _ := s.cloud.Get(lost)
			s.cloud.rejectCalls(func(c call) error {
				if c.operation == "delete" && rejected {
					return errBusy
				}
				return nil
			})
			s.cloud.vanish(lost)
			s.settle()
			var deleted []string
			for _, c := range s.cloud.takeCalls() {
				if c.operation == "delete" {
					deleted = append(deleted, c.id)
				}
			}
			assert.Equal(t, []string{lost}, deleted, "calls that delete an instance")
			assert.Len(t, s.takeFailures(), map[bool]int{true: 1}[rejected], "errors for operators")
			assert.Len(t, s.cloud.ids(workersKey), 3, "with the replacement")
			given, found := s.instances.Get(lost)
			require.True(t, found && !given.DeletedAt.IsZero(), "the record was removed")

			s.takeEvents()
			s.cloud.put(vm)
			s.pass(2 * time.Minute)
			s.want("draining " + lost + " returned")
		})
	}
}

// TestManyMissingInstancesAreLeftAlone for a while, and then replaced in parts.
func TestManyMissingInstancesAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, kept := vanished(t, 10, 9)
		s.pass(lossWindow - time.Second)
		s.wantCalls()
		assert.Len(t, s.instances.List(workersKey), 10)
		assert.Len(t, s.failures, 1, "the operators get one error")
		for _, want := range []int{3, 3, 3} {
			s.pass(time.Second)
			s.pass(acceptInterval)
			assert.Equal(t, want, s.creations())
			s.settle()
			s.pass(lossWindow - acceptInterval - time.Second)
			assert.Zero(t, s.creations())
		}
		assert.Len(t, s.cloud.ids(workersKey), 10)
		assert.Subset(t, s.cloud.ids(workersKey), kept)
	})
}

func noOthers() map[instance.GroupKey][]instance.Instance { return nil }

// TestSmallGroupWithoutMissingInstances: the instances that were given up while the group was
// large exceed the share of the small group, but no instance is missing.
func TestSmallGroupWithoutMissingInstances(t *testing.T) {
	running := func(n int) []instance.Instance {
		return slices.Repeat([]instance.Instance{{Record: instance.Record{ID: "running", ProviderID: "running"}, State: instance.Running}}, n)
	}
	missing := func(id string) instance.Instance {
		return instance.Instance{Record: instance.Record{ID: id, ProviderID: id}, State: instance.Missing}
	}
	l, now := new(losses), time.Now()
	kept, began := l.update(workersKey, append(running(12), missing("a"), missing("b"), missing("c"), missing("d"), missing("e"), missing("f")), noOthers, now, false)
	assert.Empty(t, kept)
	assert.Empty(t, began)

	kept, began = l.update(workersKey, running(9), noOthers, now, false)
	assert.Empty(t, kept)
	assert.Empty(t, began, "an error without missing instances")
	kept, began = l.update(workersKey, append(running(9), missing("g")), noOthers, now, false)
	assert.Len(t, kept, 1)
	assert.Equal(t, "1 of 10 instances of group default/workers, and 1 of 10 of the shard", began)
}

// TestAnIncompleteListTerminatesNothing: the instances come back, and no instance was
// replaced.
func TestAnIncompleteListTerminatesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		ids := s.run(workersKey, 10)
		var hidden []instance.VM
		for _, id := range ids[:9] {
			vm, _ := s.cloud.Get(id)
			hidden = append(hidden, vm)
		}
		s.cloud.vanish(ids[:9]...)
		synctest.Wait()
		s.pass(time.Minute)
		s.wantCalls()
		for _, vm := range hidden {
			s.cloud.put(vm)
		}
		synctest.Wait()
		s.pass(time.Hour)
		s.wantCalls()
		assert.Equal(t, ids, s.cloud.ids(workersKey))
	})
}

// TestAcceptedLosses are replaced at once, and no other losses.
func TestAcceptedLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := vanished(t, 10, 9)
		s.wantCalls()
		s.reconciler.Losses.(*acceptedLosses).keys.Store(workersKey, true)
		s.pass(acceptInterval)
		assert.Equal(t, 9, s.creations())
		accepted, err := s.reconciler.Losses.IsAccepted(t.Context(), workersKey)
		require.NoError(t, err)
		assert.False(t, accepted)
		s.settle()
		s.cloud.vanish(s.cloud.ids(workersKey)[:4]...)
		s.pass(time.Minute)
		assert.Zero(t, s.creations())
	})
}

// TestLossesInSteps are limited like losses at once.
func TestLossesInSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		ids := s.run(workersKey, 10)
		for _, id := range ids[:6] {
			s.cloud.vanish(id)
			s.pass(time.Minute)
		}
		assert.Equal(t, 3, s.creations())
		s.pass(lossWindow)
		assert.Equal(t, 3, s.creations())
	})
}

// members returns instances of a group. The first ones are missing, and the next ones are
// unlisted.
func members(group string, total, missing, unlisted int) []instance.Instance {
	all := make([]instance.Instance, total)
	for n := range all {
		id := fmt.Sprint(group, n)
		all[n] = instance.Instance{Record: instance.Record{ID: id, ProviderID: id}, State: instance.Running}
		switch {
		case n < missing:
			all[n].State = instance.Missing
		case n < missing+unlisted:
			all[n].Unlisted = true
		}
	}
	return all
}

// TestMissingInstancesWaitForThoseThatAreUnlisted: while the provider looks for others, the
// first missing instances may be two of many.
func TestMissingInstancesWaitForThoseThatAreUnlisted(t *testing.T) {
	for name, tc := range map[string]struct {
		missing, unlisted int
		kept              int
		began             string
	}{
		"one of ten, and all others are listed":  {missing: 1},
		"one of ten, and two more are unlisted":  {missing: 1, unlisted: 2},
		"one of ten, and many more are unlisted": {missing: 1, unlisted: 9, kept: 1},
		"all are unlisted":                       {unlisted: 10},
		"most are missing":                       {missing: 9, unlisted: 1, kept: 9, began: "9 of 10 instances of group default/workers, and 9 of 10 of the shard"},
	} {
		t.Run(name, func(t *testing.T) {
			kept, began := new(losses).update(workersKey, members("", 10, tc.missing, tc.unlisted), noOthers, time.Now(), false)
			assert.Len(t, kept, tc.kept)
			assert.Equal(t, tc.began, began)
		})
	}

	// Lookups that fail for long are reported, so that an administrator can confirm the losses.
	waiting, begin := new(losses), time.Now()
	_, reported := waiting.update(workersKey, members("", 10, 1, 9), noOthers, begin, false)
	assert.Empty(t, reported)
	assert.False(t, waiting.keeps(workersKey))
	_, reported = waiting.update(workersKey, members("", 10, 1, 9), noOthers, begin.Add(lossWindow-time.Second), false)
	assert.Empty(t, reported)
	left, reported := waiting.update(workersKey, members("", 10, 1, 9), noOthers, begin.Add(lossWindow), false)
	assert.Len(t, left, 1)
	assert.Equal(t, "1 of 10 instances of group default/workers, and 1 of 10 of the shard", reported)
	assert.True(t, waiting.keeps(workersKey))
	left, _ = waiting.update(workersKey, members("", 10, 1, 9), noOthers, begin.Add(lossWindow), true)
	assert.Empty(t, left, "accepted")

	// Stopped instances cannot be lost.
	stopped := members("", 10, 1, 9)
	for n := range stopped {
		stopped[n].Stopped = n > 0
	}
	left, _ = new(losses).update(workersKey, stopped, noOthers, begin, false)
	assert.Empty(t, left)

	// Instances that were found again do not keep the others, and further missing instances
	// do.
	l, now := new(losses), time.Now()
	kept, began := l.update(workersKey, members("", 10, 2, 8), noOthers, now, false)
	assert.Len(t, kept, 2)
	assert.Empty(t, began)
	kept, _ = l.update(workersKey, members("", 10, 2, 0), noOthers, now, false)
	assert.Empty(t, kept, "the others were found")
}

// without returns the groups except one group.
func without(all map[instance.GroupKey][]instance.Instance, key instance.GroupKey) map[instance.GroupKey][]instance.Instance {
	others := maps.Clone(all)
	delete(others, key)
	return others
}

// TestManyGroupsOfWhichAllInstancesAreMissing are too many for the shard, though two of each
// group are not.
func TestManyGroupsOfWhichAllInstancesAreMissing(t *testing.T) {
	key := func(n int) instance.GroupKey {
		return instance.GroupKey{Tenant: "default", Group: fmt.Sprint("group", n)}
	}
	groups := func(missing, unlisted int) map[instance.GroupKey][]instance.Instance {
		all := map[instance.GroupKey][]instance.Instance{}
		for n := range 9 {
			all[key(n)] = members(key(n).Group, 2, missing, unlisted)
		}
		return all
	}
	own := members("own", 2, 2, 0)
	others := func(all map[instance.GroupKey][]instance.Instance) func() map[instance.GroupKey][]instance.Instance {
		return func() map[instance.GroupKey][]instance.Instance { return all }
	}
	now := time.Now()

	l := new(losses)
	kept, began := l.update(workersKey, own, others(groups(0, 2)), now, false)
	assert.Len(t, kept, 2, "others are unlisted")
	assert.Empty(t, began)
	kept, began = l.update(workersKey, own, others(groups(2, 0)), now, false)
	assert.Len(t, kept, 2, "others are missing")
	assert.Equal(t, "2 of 2 instances of group default/workers, and 20 of 20 of the shard", began)
	kept, began = l.update(workersKey, own, others(groups(2, 0)), now.Add(lossWindow-time.Second), false)
	assert.Len(t, kept, 2)
	assert.Empty(t, began, "reported once")
	kept, _ = l.update(workersKey, own, others(groups(2, 0)), now.Add(lossWindow), false)
	assert.Empty(t, kept, "after the window")

	// Afterwards a third of the shard is given up in each window.
	l = new(losses)
	left, all := map[instance.GroupKey][]instance.Instance{}, groups(2, 0)
	update := func(at time.Time) (kept int) {
		for n := range 9 {
			k, _ := l.update(key(n), left[key(n)], others(without(left, key(n))), at, false)
			kept += len(k)
			// The others are replaced.
			for i := range left[key(n)] {
				if member := &left[key(n)][i]; member.State == instance.Missing && !k[member.ID] {
					*member = members("replacement-of-"+member.ID, 1, 0, 0)[0]
				}
			}
		}
		return kept
	}
	maps.Copy(left, all)
	assert.Equal(t, 18, update(now))
	assert.Equal(t, 18, update(now.Add(lossWindow-time.Second)))
	assert.Equal(t, 12, update(now.Add(lossWindow)))
	assert.Equal(t, 12, update(now.Add(2*lossWindow-time.Second)))
	assert.Equal(t, 6, update(now.Add(2*lossWindow)))

	// Losses of other groups count too.
	l, all = new(losses), groups(0, 0)
	for n := range 3 {
		all[key(n)] = members(key(n).Group, 2, 2, 0)
		kept, _ = l.update(key(n), all[key(n)], others(map[instance.GroupKey][]instance.Instance{workersKey: members("x", 20, 0, 0)}), now, false)
		assert.Empty(t, kept)
	}
	kept, began = l.update(workersKey, own, others(all), now, false)
	assert.Len(t, kept, 2, "6 of 14 were given up before")
	assert.Equal(t, "2 of 2 instances of group default/workers, and 2 of 14 of the shard", began)
	kept, _ = new(losses).update(workersKey, own, others(groups(0, 0)), now, false)
	assert.Empty(t, kept, "2 of 20")
	accepted, _ := l.update(workersKey, own, others(all), now, true)
	assert.Empty(t, accepted, "an administrator has confirmed")

	// Confirmed losses leave the share to others.
	l = new(losses)
	large := members("large", 20, 15, 0)
	kept, _ = l.update(workersKey, large, noOthers, now, true)
	assert.Empty(t, kept)
	kept, _ = l.update(key(0), members("one", 10, 1, 0), others(map[instance.GroupKey][]instance.Instance{workersKey: large}), now, false)
	assert.Empty(t, kept)
}

// deletedGroup is a group that was deleted, beside the others.
type deletedGroup struct {
	Groups
	key instance.GroupKey
}

func (d deletedGroup) Deleted(key instance.GroupKey) bool {
	return key == d.key || d.Groups.Deleted(key)
}

// TestInstancesOfDeletedGroupsDoNotCount for the share of the shard, as they are not replaced.
func TestInstancesOfDeletedGroupsDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.run(workersKey, 1)
		s.run(otherKey, 2)
		r := &reconciliation{Reconciler: s.reconciler, key: workersKey}
		assert.Len(t, r.others()[otherKey], 2)
		assert.NotContains(t, r.others(), workersKey)
		r.Reconciler = &Reconciler{Options: Options{Instances: s.reconciler.Instances, Groups: deletedGroup{s.reconciler.Groups, otherKey}}}
		assert.Empty(t, r.others())
	})
}
