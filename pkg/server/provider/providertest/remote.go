// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
)

// RemoteBackend is a Backend whose responses can be late, incomplete or lost, like the
// responses of a remote cloud.
type RemoteBackend interface {
	Backend
	// FailLists makes the next lists fail, as if a part of them could not be read.
	FailLists(times int)
	// EmptyLists makes the next lists empty, without an error.
	EmptyLists(times int)
	// DelayVisibility hides each instance for a time after its creation. It is called before a
	// provider is created.
	DelayVisibility(d time.Duration)
	// FallBehind makes lists and terminations know no instance for a time, like a replica that
	// lags behind. Reads of a single instance find it.
	FallBehind(d time.Duration)
	// Throttle rejects all calls for a time. They do not count as calls.
	Throttle(d time.Duration)
}

// remoteSuite is one test of a remote backend.
type remoteSuite struct {
	*suite
	RemoteBackend
}

// remoteCases are the additional tests of TestRemote. docs/providers.md lists them.
var remoteCases = []struct {
	name string
	test func(remoteSuite)
}{
	{"an instance that is not visible yet is not created again", remoteSuite.testHidden},
	{"an instance that is not visible yet is deleted", remoteSuite.testDeleteHidden},
	{"an instance that a termination does not find is deleted later", remoteSuite.testDeleteUnknown},
	{"lists that fail or are empty make no instance missing", remoteSuite.testWrongLists},
	{"throttled calls are delayed", remoteSuite.testThrottle},
}

// TestRemote runs the tests of Test, and tests that a provider draws no wrong conclusion from
// responses that are late, incomplete or lost. NewBackend must return a RemoteBackend.
func TestRemote(t *testing.T, c Config) {
	Test(t, c)
	for _, tc := range remoteCases {
		t.Run(tc.name, func(t *testing.T) {
			c.Run(t, func(t *testing.T) {
				backend := c.NewBackend(t).(RemoteBackend)
				tc.test(remoteSuite{&suite{Config: c, Backend: backend, t: t}, backend})
			})
		})
	}
}

// awaitInstances waits until exactly these instances exist at the backend.
func (s remoteSuite) awaitInstances(want ...string) {
	s.t.Helper()
	slices.Sort(want)
	deadline := time.Now().Add(awaitTimeout)
	for {
		got := s.suite.Instances()
		slices.Sort(got)
		if slices.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("instances %v exist, want %v", got, want)
		}
		time.Sleep(s.QuietPeriod / 20)
	}
}

func (s remoteSuite) testHidden() {
	s.DelayVisibility(s.QuietPeriod)
	h := s.start()
	spec := s.spec(workers)
	first := h.MustCreate(spec)
	s.awaitInstances(first)
	time.Sleep(s.QuietPeriod / 2)
	if _, known := h.Get(first); !known {
		s.t.Error("an instance is not listed while it is not visible")
	}
	h.Await(workers, map[string]instance.State{first: instance.Running})

	// The next process gets another nonce for the instance.
	second := NewID(s.t)
	spec.ID, spec.Userdata = second, []byte("one")
	h.MustCreate(spec)
	s.awaitInstances(first, second)
	h.Stop()
	time.Sleep(time.Millisecond)
	h = s.start()
	spec.Userdata = []byte("two")
	h.MustCreate(spec)
	h.Await(workers, map[string]instance.State{first: instance.Running, second: instance.Running})
	time.Sleep(s.QuietPeriod)
	s.awaitInstances(first, second)
	assert.Empty(s.t, h.Failures, "failures")
}

func (s remoteSuite) testDeleteHidden() {
	s.DelayVisibility(s.QuietPeriod)
	h := s.start()
	id := h.MustCreate(s.spec(workers))
	s.awaitInstances(id)
	h.MustDelete(id)
	h.Await(workers, map[string]instance.State{id: Deleted})
	s.awaitInstances()
	assert.Empty(s.t, h.Failures, "failures")
}

func (s remoteSuite) testDeleteUnknown() {
	h := s.start()
	id := h.MustRun(s.spec(workers))
	s.suite.Calls()
	s.FallBehind(s.QuietPeriod)
	h.MustDelete(id)
	time.Sleep(s.QuietPeriod / 2)
	if _, deletes := s.suite.Calls(); deletes == 0 {
		s.t.Error("no termination was tried")
	}
	assert.Equal(s.t, map[string]instance.State{id: instance.Terminating}, h.States(workers))
	s.awaitInstances(id)
	h.Await(workers, map[string]instance.State{id: Deleted})
	s.awaitInstances()
	assert.Empty(s.t, h.Failures, "failures")
}

func (s remoteSuite) testWrongLists() {
	h := s.start()
	first, second := h.MustRun(s.spec(workers)), h.MustRun(s.spec(otherWorkers))
	h.DrainChanges()
	s.FailLists(3)
	time.Sleep(s.QuietPeriod)
	s.EmptyLists(3)
	time.Sleep(s.QuietPeriod)
	if len(h.Changes) != 0 || len(h.Failures) != 0 {
		s.t.Errorf("%d changes and %d failures were reported, want none", len(h.Changes), len(h.Failures))
	}
	for id, group := range map[string]instance.GroupKey{first: workers, second: otherWorkers} {
		if state, listed := h.States(group)[id]; state != instance.Running || !listed {
			s.t.Errorf("instance %s is %v, listed %t", id, state, listed)
		}
	}
	s.suite.Delete(first)
	h.Await(workers, map[string]instance.State{first: Ended})
	s.awaitInstances(second)
}

func (s remoteSuite) testThrottle() {
	h := s.start()
	deleted := h.MustRun(s.spec(workers))
	s.suite.Calls()
	s.Throttle(s.QuietPeriod)
	created := h.MustCreate(s.spec(workers))
	h.MustDelete(deleted)
	h.Await(workers, map[string]instance.State{created: instance.Running, deleted: Deleted})
	s.awaitInstances(created)
	s.expectCalls(1, 1)
	assert.Empty(s.t, h.Failures, "failures")
}
