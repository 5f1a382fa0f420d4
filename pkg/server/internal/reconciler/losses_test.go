// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/instance"
)

// acceptedLosses is what an administrator of a test has accepted.
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

// TestSmallGroupWithoutMissingInstances: those that were given up while the group was large
// exceed the share of the small group, but nothing is missing.
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

// TestAnIncompleteListTerminatesNothing: the instances come back, none was replaced.
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

// TestAcceptedLosses are replaced at once, and only those.
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

// TestLossesInSteps are limited as those at once are.
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
