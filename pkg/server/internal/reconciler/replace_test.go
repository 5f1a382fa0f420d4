// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/server/config"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/internal/agents/agenthealth"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// fleet runs the agents of a server's instances.
type fleet struct {
	*server
	// boots decides which instances start an agent.
	boots func(instance.Instance) bool
	// running has the agents by instance id.
	running map[string]*testAgent
}

// testAgent is an agent that reports every 30 seconds.
type testAgent struct {
	stop   context.CancelFunc
	notice *nstancev1.TerminationNotice
	report chan struct{}
}

// startFleet starts a server whose instances run agents, each of which starts with its
// instance.
func startFleet(t *testing.T) *fleet {
	t.Helper()
	c := newConfig()
	c.Shard.HealthCheckInterval = time.Minute
	c.Shard.GarbageCollection.RegistrationTimeout = 5 * time.Minute
	f := &fleet{server: startServer(t, c, true), running: map[string]*testAgent{}}
	f.boots = func(instance.Instance) bool { return true }
	t.Cleanup(func() {
		for _, a := range f.running {
			a.stop()
		}
	})
	return f
}

func (s *server) newAgents() *agenthealth.Tracker {
	return agenthealth.NewTracker(agenthealth.Options{
		Interval: func() time.Duration { return time.Minute },
		Changed:  func(key instance.GroupKey) { s.reconciler.Enqueue(key) },
		Check:    func(key instance.GroupKey, _ string) { s.reconciler.Enqueue(key) },
		Failed:   func(err error) { s.reportFailure(instance.GroupKey{}, "", err) },
	})
}

// start starts the agent of an instance.
func (f *fleet) start(id string) {
	f.t.Helper()
	err := f.instances.Register(f.t.Context(), id, func(present *instance.Registration) (instance.Registration, error) {
		if present != nil {
			return *present, nil
		}
		return instance.Registration{PublicKeyPEM: id, RegisteredAt: time.Now()}, nil
	})
	require.NoError(f.t, err)
	i, _ := f.instances.Get(id)
	f.agents.Registered(&i.Record)
	ctx, cancel := context.WithCancel(context.Background())
	a := &testAgent{stop: cancel, report: make(chan struct{}, 1)}
	f.running[id] = a
	session := f.agents.Connect(&i.Record)
	session.Report(&nstancev1.HealthReportRequest{InstanceId: id})
	go func() {
		defer session.Close()
		for {
			select {
			case <-ctx.Done():
				return
			case <-a.report:
			case <-time.After(30 * time.Second):
			}
			session.Report(&nstancev1.HealthReportRequest{InstanceId: id, TerminationNotice: a.notice})
		}
	}()
}

// settle lets the cloud finish its work, and starts the agents of instances that run.
func (f *fleet) settle() {
	f.t.Helper()
	for range 3 {
		f.cloud.settle()
		synctest.Wait()
		for _, key := range f.instances.Keys() {
			for _, i := range f.instances.List(key) {
				if vm, known := f.cloud.Get(i.ID); known && vm.State == instance.Running && f.running[i.ID] == nil && f.boots(i) {
					f.start(i.ID)
				}
			}
		}
		synctest.Wait()
	}
	for id, a := range f.running {
		if _, known := f.cloud.Get(id); !known {
			a.stop()
			delete(f.running, id)
		}
	}
}

// pass lets time pass in steps, and calls check after each.
func (f *fleet) pass(d time.Duration, check func()) {
	f.t.Helper()
	step := 10 * time.Second
	if d > 15*time.Minute {
		step = time.Minute
	}
	for range d / step {
		f.server.pass(step)
		f.settle()
		check()
	}
}

// serving returns the number of instances of a group that run and report.
func (f *fleet) serving(key instance.GroupKey) int {
	serving := 0
	for _, i := range f.instances.List(key) {
		if i.Agent.State == instance.AgentReporting && !i.BeingDeleted() {
			serving++
		}
	}
	return serving
}

// scaled sets the size of a group and starts its instances.
func (f *fleet) scaled(key instance.GroupKey, size int) []string {
	f.t.Helper()
	f.scale(key, size)
	f.settle()
	ids := f.cloud.ids(key)
	require.Len(f.t, ids, size, "instances of group %s", key)
	require.Equal(f.t, size, f.serving(key), "serving")
	f.cloud.takeCalls()
	f.takeEvents()
	return ids
}

// created returns how many instances were created since its last call.
func (f *fleet) created() int {
	creates := 0
	for _, c := range f.cloud.takeCalls() {
		if c.operation == "create" {
			creates++
		}
	}
	return creates
}

// failuresOf returns the failures that contain a text.
func (s *server) failuresOf(text string) []failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.failures), func(f failure) bool { return !strings.Contains(f.text, text) })
}

// withArgs changes the arguments from which instances are created.
func withArgs(value string) func(*config.Config) {
	return func(c *config.Config) {
		worker := c.Templates["worker"]
		worker.Args = map[string]any{"note": value}
		c.Templates["worker"] = worker
		c.Shard.HealthCheckInterval = time.Minute
		c.Shard.GarbageCollection.RegistrationTimeout = 5 * time.Minute
	}
}

// TestUserdataIsRemovedWhenTheAgentHasRegistered, and not before.
func TestUserdataIsRemovedWhenTheAgentHasRegistered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t)
		f.boots = func(instance.Instance) bool { return false }
		f.scale(workersKey, 2)
		f.settle()
		f.pass(time.Minute, func() {})
		removed := func() int {
			f.cloud.Mu.Lock()
			defer f.cloud.Mu.Unlock()
			return len(f.cloud.cleaned)
		}
		assert.Zero(t, removed())
		f.boots = func(instance.Instance) bool { return true }
		f.settle()
		f.pass(time.Minute, func() {})
		assert.Equal(t, 2, removed())
	})
}

// TestBadUserdataStopsARotation: the rotation of a group of ten stops after one machine,
// loses no capacity, and goes on when the userdata is mended.
func TestBadUserdataStopsARotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t)
		before := f.scaled(workersKey, 10)
		f.boots = func(instance.Instance) bool { return false }
		f.reconfigure(withArgs("bad"))
		f.settle()
		complete := func() {
			t.Helper()
			require.Equal(t, 10, f.serving(workersKey), "instances that serve")
			require.LessOrEqual(t, len(f.cloud.ids(workersKey)), 11, "machines")
		}
		f.pass(4*time.Minute+50*time.Second, complete)
		assert.Equal(t, 1, f.created(), "machines created in the first five minutes")
		assert.Empty(t, f.failuresOf("has not registered"))
		f.pass(time.Minute, complete)
		failures := f.failuresOf("has not registered within 5m0s, no request with its nonce has arrived: it is deleted")
		require.Len(t, failures, 1)
		assert.Equal(t, workersKey, failures[0].group)
		assert.Contains(t, failures[0].text, `check the userdata of template "worker"`)
		// The delay grows.
		f.created()
		f.pass(2*time.Hour, complete)
		assert.LessOrEqual(t, f.created(), 12, "machines created in the next two hours")
		for _, id := range before {
			i, found := f.instances.Get(id)
			assert.True(t, found && !i.BeingDeleted(), "instance %s", id)
		}

		f.boots = func(i instance.Instance) bool {
			group, _ := f.groups.Get(workersKey)
			return i.InfraConfigHash == group.InfraConfigHash
		}
		f.reconfigure(withArgs("good"))
		atLeast := func() {
			t.Helper()
			require.GreaterOrEqual(t, f.serving(workersKey)+f.draining(workersKey), 10, "instances that serve")
		}
		f.pass(2*time.Hour, atLeast)
		after := f.cloud.ids(workersKey)
		assert.Len(t, after, 10)
		for _, id := range before {
			assert.NotContains(t, after, id, "instances of the old configuration")
		}
	})
}

// draining returns how many instances of a group drain.
func (f *fleet) draining(key instance.GroupKey) int {
	draining := 0
	for _, i := range f.instances.List(key) {
		if i.Drain != nil && i.DeleteReason == "" {
			draining++
		}
	}
	return draining
}

// TestAGroupThatNeverRegisters is created again with a growing delay, one at a time.
func TestAGroupThatNeverRegisters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t)
		f.boots = func(instance.Instance) bool { return false }
		f.scale(workersKey, 3)
		f.settle()
		assert.Equal(t, 3, f.created())
		f.pass(5*time.Minute+10*time.Second, func() {})
		assert.Len(t, f.failuresOf("has not registered"), 3)
		f.pass(2*time.Hour, func() {
			require.LessOrEqual(t, len(f.cloud.ids(workersKey)), 1, "machines")
		})
		assert.InDelta(t, 9, f.created(), 3, "machines in two hours")
		f.boots = func(instance.Instance) bool { return true }
		f.pass(30*time.Minute, func() {})
		assert.Equal(t, 3, f.serving(workersKey))
	})
}

// TestALostAgentIsReplaced after the follow-ups, and drained when the replacement reports.
func TestALostAgentIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t)
		ids := f.scaled(workersKey, 6)
		f.running[ids[2]].stop()
		f.pass(2*time.Minute+40*time.Second, func() {})
		assert.Empty(t, f.cloud.takeCalls(), "before the last follow-up")
		f.boots = func(instance.Instance) bool { return false }
		f.pass(30*time.Second, func() {})
		assert.Equal(t, 1, f.created())
		assert.Empty(t, f.takeEvents(), "before the replacement reports")
		f.boots = func(i instance.Instance) bool { return i.ID != ids[2] }
		f.pass(10*time.Second, func() {})
		assert.Contains(t, f.takeEvents(), "draining "+ids[2]+" unhealthy")
		f.pass(10*time.Minute, func() {})
		want := append(slices.Delete(slices.Clone(ids), 2, 3), slices.Max(f.cloud.ids(workersKey)))
		assert.Equal(t, want, f.cloud.ids(workersKey), "the others stay")
		assert.Equal(t, 0, f.created())
	})
}

// TestNoticedInstancesAreDrainedAndReplacedAtOnce, all of them, until the deadline.
func TestNoticedInstancesAreDrainedAndReplacedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startFleet(t)
		ids := f.scaled(workersKey, 5)
		start := time.Now()
		for n, id := range ids[:3] {
			notice := &nstancev1.TerminationNotice{Action: "terminate"}
			if n < 2 {
				notice.Deadline = timestamppb.New(start.Add(2 * time.Minute))
			}
			f.running[id].notice = notice
			f.running[id].report <- struct{}{}
		}
		synctest.Wait()
		assert.Equal(t, 3, f.created(), "replacements")
		events := f.takeEvents()
		for n, id := range ids[:3] {
			assert.Contains(t, events, "draining "+id+" spot")
			i, _ := f.instances.Get(id)
			deadline := start.Add(2 * time.Minute)
			if n == 2 {
				deadline = start.Add(5 * time.Minute)
			}
			require.NotNil(t, i.Drain)
			assert.Equal(t, deadline, i.Drain.DeleteAt.UTC().In(start.Location()), "deadline of %s", id)
		}
		f.pass(10*time.Minute, func() {})
		assert.Equal(t, 5, f.serving(workersKey))
		assert.Equal(t, 0, f.created())
	})
}

// TestAnInstanceHasTheHashItWasCreatedFrom: its record is written under one configuration,
// and the instance is created later, from another.
func TestAnInstanceHasTheHashItWasCreatedFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.cloud.rejectCalls(noCreates)
		s.scale(workersKey, 1)
		require.Len(t, s.instances.List(workersKey), 1, "records")
		s.reconfigure(withArgs("two"))
		s.cloud.rejectCalls(nil)
		s.pass(time.Minute)
		s.settle()
		s.cloud.takeCalls()
		current := func() string {
			t.Helper()
			list := s.instances.List(workersKey)
			require.Len(t, list, 1)
			return list[0].InfraConfigHash
		}
		group, _ := s.groups.Get(workersKey)
		assert.Equal(t, group.InfraConfigHash, current())
		s.stop()
		s.loseCache()
		s.lead()
		s.pass(time.Hour)
		assert.Equal(t, group.InfraConfigHash, current(), "after a restart")
		assert.Empty(t, s.cloud.takeCalls(), "it has not drifted")
		// The server returns to the earlier configuration, which the instance has.
		s.reconfigure(func(*config.Config) {})
		s.settle()
		assert.Contains(t, describeCalls(s.cloud.takeCalls()), "create default/workers")
	})
}
