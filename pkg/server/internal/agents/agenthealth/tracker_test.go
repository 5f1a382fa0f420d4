// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agenthealth

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// shard has instances with agents, and a tracker that follows them. All instances run at the
// provider.
type shard struct {
	*Tracker
	t *testing.T

	mu sync.Mutex
	// instances have the records by id.
	instances map[string]instance.Record
	// stops have the functions that stop agents.
	stops map[string]func()
	// stopped has the machines that do not run.
	stopped map[string]bool
	checks  map[string][]time.Duration
	failed  []string
	start   time.Time
}

// newShard starts a tracker that expects reports every minute. Instances that are named
// have registered before.
func newShard(t *testing.T, ids ...string) *shard {
	t.Helper()
	s := &shard{t: t, instances: map[string]instance.Record{}, stops: map[string]func(){}, stopped: map[string]bool{}, checks: map[string][]time.Duration{}, start: time.Now()}
	s.Tracker = NewTracker(Options{
		Interval: func() time.Duration { return time.Minute },
		Changed:  func(instance.GroupKey) {},
		Check: func(_ instance.GroupKey, id string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.checks[id] = append(s.checks[id], time.Since(s.start).Round(time.Second))
		},
		Failed: func(err error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.failed = append(s.failed, err.Error())
		},
	})
	for _, id := range ids {
		s.instances[id] = instance.Record{ID: id, Registration: &instance.Registration{}}
		s.state(id)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx, s) })
	t.Cleanup(func() {
		for _, stop := range s.stops {
			stop()
		}
		cancel()
		running.Wait()
	})
	return s
}

// Get returns an instance, as the store does.
func (s *shard) Get(id string) (instance.Instance, bool) {
	s.mu.Lock()
	record, found := s.instances[id]
	s.mu.Unlock()
	if !found {
		return instance.Instance{}, false
	}
	if s.isStopped(id) {
		return instance.Instance{Record: record, State: instance.Stopped, Known: true}, true
	}
	return instance.Instance{Record: record, State: instance.Running, Known: true, Agent: s.State(&record)}, true
}

func (s *shard) isStopped(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopped[id]
}

// stop stops a machine, or starts it again.
func (s *shard) stop(id string, stopped bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped[id] = stopped
}

func (s *shard) state(id string) instance.AgentState {
	i, _ := s.Get(id)
	return i.Agent.State
}

// lost returns the instances whose agent is lost.
func (s *shard) lost() []string {
	lost := []string{}
	for id := range s.instances {
		if s.state(id) == instance.AgentLost {
			lost = append(lost, id)
		}
	}
	slices.Sort(lost)
	return lost
}

// connect starts an agent that reports every minute until disconnect.
func (s *shard) connect(ids ...string) {
	for _, id := range ids {
		record := s.instances[id]
		session := s.Connect(&record)
		session.Report(&nstancev1.HealthReportRequest{InstanceId: id})
		stopped := make(chan struct{})
		s.stops[id] = sync.OnceFunc(func() { close(stopped) })
		go func() {
			defer session.Close()
			for {
				select {
				case <-stopped:
					return
				case <-time.After(time.Minute):
					session.Report(&nstancev1.HealthReportRequest{InstanceId: id})
				}
			}
		}()
	}
	synctest.Wait()
}

// checksOf returns when the provider was queried for an instance.
func (s *shard) checksOf(id string) []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.checks[id])
}

// failures returns the reported errors.
func (s *shard) failures() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.failed)
}

func (s *shard) disconnect(ids ...string) {
	for _, id := range ids {
		s.stops[id]()
	}
	synctest.Wait()
}

func (s *shard) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func names(count int) []string {
	var ids []string
	for n := range count {
		ids = append(ids, fmt.Sprintf("i%03d", n))
	}
	return ids
}

func TestADisconnectIsFollowedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t, names(6)...)
		s.connect(names(6)...)
		s.pass(10 * time.Minute)
		assert.Empty(t, s.checksOf("i000"), "checks of an agent that reports")
		s.start = time.Now()
		s.disconnect("i000")
		s.pass(164 * time.Second)
		assert.Empty(t, s.lost())
		s.pass(2 * time.Second)
		assert.Equal(t, []string{"i000"}, s.lost())
		seconds := []time.Duration{0, 3, 9, 21, 45, 75, 105, 135, 165}
		for n := range seconds {
			seconds[n] *= time.Second
		}
		assert.Equal(t, seconds, s.checksOf("i000"))
		assert.Empty(t, s.checksOf("i001"))
		assert.Contains(t, s.State(&instance.Record{ID: "i000"}).Reason, "has not been connected for 2m45s")
		// The agent is found again when it reports, not when it connects.
		session := s.Connect(&instance.Record{ID: "i000"})
		assert.Equal(t, []string{"i000"}, s.lost())
		session.Report(&nstancev1.HealthReportRequest{})
		assert.Empty(t, s.lost())
		session.Close()
	})
}

// TestAnAgentThatComesBack begins anew with the next disconnect.
func TestAnAgentThatComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t, names(2)...)
		s.connect(names(2)...)
		for range 5 {
			s.disconnect("i000")
			s.pass(2 * time.Minute)
			s.connect("i000")
		}
		assert.Empty(t, s.lost())
		// Connections without a report are no return.
		s.disconnect("i000")
		for range 20 {
			session := s.Connect(&instance.Record{ID: "i000"})
			s.pass(5 * time.Second)
			session.Close()
			s.pass(5 * time.Second)
		}
		assert.Equal(t, []string{"i000"}, s.lost())
	})
}

func TestMissedReportsOnAnOpenStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t, names(2)...)
		s.connect("i001")
		session := s.Connect(&instance.Record{ID: "i000"})
		defer session.Close()
		session.Report(&nstancev1.HealthReportRequest{})
		s.pass(89 * time.Second)
		assert.Empty(t, s.checksOf("i000"))
		s.pass(2 * time.Second)
		assert.Len(t, s.checksOf("i000"), 1, "checks after the first missed report")
		s.pass(118 * time.Second)
		assert.Empty(t, s.lost())
		s.pass(2 * time.Second)
		assert.Equal(t, []string{"i000"}, s.lost())
		assert.Contains(t, s.State(&instance.Record{ID: "i000"}).Reason, "has missed 3 reports")
	})
}

// TestANewLeaderWaits: it has not received any report yet.
func TestANewLeaderWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t, names(2)...)
		s.connect("i001")
		assert.Equal(t, instance.AgentUnknown, s.state("i000"))
		s.pass(3*time.Minute + 164*time.Second)
		assert.Empty(t, s.lost())
		s.pass(2 * time.Second)
		assert.Equal(t, []string{"i000"}, s.lost())
	})
}

// TestAPartition cuts off half of 200 agents for five minutes. They come back over a
// minute, except one.
func TestAPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := names(200)
		s := newShard(t, ids...)
		s.connect(ids...)
		s.pass(time.Minute)
		for _, id := range ids[:100] {
			s.disconnect(id)
			s.pass(200 * time.Millisecond)
		}
		s.pass(5 * time.Minute)
		assert.Empty(t, s.lost())
		assert.Len(t, s.failures(), 1)
		for _, id := range ids[1:100] {
			s.connect(id)
			s.pass(600 * time.Millisecond)
			assert.Empty(t, s.lost())
		}
		s.pass(10 * time.Minute)
		assert.Equal(t, ids[:1], s.lost())
		assert.Len(t, s.failures(), 1)
	})
}

// TestAPartitionThatLasts ends the wait after a quarter of an hour.
func TestAPartitionThatLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := names(6)
		s := newShard(t, ids...)
		s.connect(ids...)
		s.disconnect(ids[:3]...)
		s.pass(holdLimit - time.Second)
		assert.Empty(t, s.lost())
		s.pass(2 * time.Second)
		assert.Equal(t, ids[:3], s.lost())
	})
}

// TestMostlySilentAgentsWaitForAnAdministrator, however small the shard is: hours later they
// come back.
func TestMostlySilentAgentsWaitForAnAdministrator(t *testing.T) {
	for _, test := range []struct{ silent, all int }{{1, 1}, {2, 2}, {2, 3}, {6, 10}, {200, 200}} {
		synctest.Test(t, func(t *testing.T) {
			ids := names(test.all)
			s := newShard(t, ids...)
			s.connect(ids...)
			s.disconnect(ids[:test.silent]...)
			s.pass(3 * time.Hour)
			assert.Empty(t, s.lost(), "%d of %d", test.silent, test.all)
			require.Len(t, s.failures(), 1)
			assert.Contains(t, s.failures()[0], fmt.Sprintf("%d of %d agents do not report", test.silent, test.all))
			s.connect(ids[:test.silent]...)
			s.pass(10 * time.Minute)
			assert.Empty(t, s.lost(), "%d of %d", test.silent, test.all)
		})
	}
}

// TestAMachineThatIsStartedAgain has time to connect: while it did not run, its silence did not count.
func TestAMachineThatIsStartedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := names(10)
		s := newShard(t, ids...)
		s.connect(ids...)
		s.disconnect("i000")
		s.stop("i000", true)
		s.pass(10 * time.Minute)
		s.stop("i000", false)
		s.pass(3 * time.Minute)
		assert.Empty(t, s.lost())
		s.connect("i000")
		s.pass(10 * time.Minute)
		assert.Empty(t, s.lost())
		s.disconnect("i000")
		s.pass(10 * time.Minute)
		assert.Equal(t, []string{"i000"}, s.lost())
	})
}

// TestCounts of agents in the metrics.
func TestCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := names(5)
		s := newShard(t, ids...)
		s.mu.Lock()
		s.instances["i000"] = instance.Record{ID: "i000", Registration: &instance.Registration{ExpiresAt: time.Now().Add(time.Hour)}}
		s.mu.Unlock()
		registry := prometheus.NewRegistry()
		registry.MustRegister(s.Tracker)
		want := func(expected, silent, expired float64) {
			t.Helper()
			families, err := registry.Gather()
			require.NoError(t, err)
			got := map[string]float64{}
			for _, family := range families {
				got[family.GetName()] = family.GetMetric()[0].GetGauge().GetValue()
			}
			assert.Equal(t, map[string]float64{
				"nstance_server_agents_expected": expected, "nstance_server_agents_silent": silent, "nstance_server_agent_certificates_expired": expired,
			}, got)
		}
		s.connect(ids...)
		s.pass(2 * time.Second)
		want(5, 0, 0)
		s.disconnect(ids[:3]...)
		s.pass(time.Hour)
		want(5, 3, 1)
		s.mu.Lock()
		delete(s.instances, "i000")
		s.mu.Unlock()
		s.pass(2 * time.Second)
		want(4, 2, 0)
	})
}

// TestAFewSilentAgentsAreReplaced: most others report.
func TestAFewSilentAgentsAreReplaced(t *testing.T) {
	for _, test := range []struct{ silent, all int }{{1, 2}, {1, 3}, {2, 4}, {3, 10}} {
		synctest.Test(t, func(t *testing.T) {
			ids := names(test.all)
			s := newShard(t, ids...)
			s.connect(ids...)
			s.disconnect(ids[:test.silent]...)
			s.pass(166 * time.Second)
			assert.Equal(t, ids[:test.silent], s.lost(), "%d of %d", test.silent, test.all)
		})
	}
}

// TestTheLimitBeginsWhenHalfReport: of ten agents half come back after hours, and the others count
// as lost a quarter of an hour later.
func TestTheLimitBeginsWhenHalfReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ids := names(10)
		s := newShard(t, ids...)
		s.connect(ids...)
		s.disconnect(ids...)
		s.pass(3 * time.Hour)
		s.connect(ids[5:]...)
		s.pass(holdLimit - time.Second)
		assert.Empty(t, s.lost())
		s.pass(3 * time.Second)
		assert.Equal(t, ids[:5], s.lost())
		assert.Len(t, s.failures(), 2)
	})
}

// TestAMachineThatIsNotReadyIsAwaited, until it is ready once.
func TestTheReasonForARefusalIsKeptUntilTheAgentRegisters(t *testing.T) {
	s := NewTracker(Options{Interval: func() time.Duration { return time.Minute }})
	record := instance.Record{ID: "a"}
	s.Refused("a", "too early: nobody has asked for the instance")
	assert.Empty(t, s.State(&record).Refused)
	s.Refused("a", "first")
	s.Refused("a", "second")
	assert.Equal(t, "second", s.State(&record).Refused)
	s.Registered(&record)
	assert.Empty(t, s.State(&record).Refused)
	s.Refused("a", "third")
	assert.Empty(t, s.State(&record).Refused)
}

func TestAMachineThatIsNotReadyIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t, "former")
		s.instances["new"] = instance.Record{ID: "new", Registration: &instance.Registration{}}
		record := instance.Record{ID: "new"}
		assert.Equal(t, instance.AgentAwaited, s.State(&record).State)
		created := time.Now()
		s.pass(time.Minute)
		s.Registered(&record)
		session := s.Connect(&record)
		defer session.Close()
		report := func(session *Session, id, notReady string) {
			session.Report(&nstancev1.HealthReportRequest{InstanceId: id, NotReady: notReady})
		}
		report(session, "new", strings.Repeat("x", 199)+"é")
		want := instance.Agent{State: instance.AgentAwaited, Since: created, NotReady: strings.Repeat("x", 199)}
		assert.Equal(t, want, s.State(&record))
		s.pass(time.Minute)
		report(session, "new", "")
		want = instance.Agent{State: instance.AgentReporting, Since: time.Now()}
		assert.Equal(t, want, s.State(&record))
		s.pass(time.Minute)
		report(session, "new", "the kubelet is restarted")
		assert.Equal(t, want, s.State(&record), "an instance that has been ready stays up")

		// A new leader hears it from the agent: until then the instance counts as running.
		former := instance.Record{ID: "former", Registration: &instance.Registration{}}
		assert.Equal(t, instance.AgentUnknown, s.State(&former).State)
		other := s.Connect(&former)
		defer other.Close()
		report(other, "former", "it has not joined")
		want = instance.Agent{State: instance.AgentAwaited, Since: time.Now(), NotReady: "it has not joined"}
		assert.Equal(t, want, s.State(&former))
	})
}

func TestAgentsOfDeletedInstancesAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t, names(3)...)
		s.connect(names(3)...)
		s.mu.Lock()
		delete(s.instances, "i001")
		s.mu.Unlock()
		s.pass(2 * time.Second)
		s.Tracker.mu.Lock()
		defer s.Tracker.mu.Unlock()
		assert.Len(t, s.agents, 2)
	})
}

// TestARegistrationThatWasJustStoredIsNotJudged: the tracker learns of it a moment later.
func TestARegistrationThatWasJustStoredIsNotJudged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t, "other")
		s.connect("other")
		s.instances["a"] = instance.Record{ID: "a"}
		assert.Equal(t, instance.AgentAwaited, s.state("a"))
		s.mu.Lock()
		record := instance.Record{ID: "a", Registration: &instance.Registration{}}
		s.instances["a"] = record
		s.mu.Unlock()
		time.Sleep(time.Minute)
		assert.Equal(t, instance.AgentAwaited, s.state("a"))
		s.Registered(&record)
		time.Sleep(time.Minute)
		assert.Empty(t, s.checksOf("a"), "several reports may be missing at first")
		s.pass(5 * time.Minute)
		assert.Equal(t, []string{"a"}, s.lost())
	})
}

// TestARegistrationWithALostAnswer: the agent is expected to report although Registered was
// not called, because it may never come back.
func TestARegistrationWithALostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t, "other")
		s.connect("other")
		s.instances["a"] = instance.Record{ID: "a"}
		assert.Equal(t, instance.AgentAwaited, s.state("a"))
		s.mu.Lock()
		s.instances["a"] = instance.Record{ID: "a", Registration: &instance.Registration{}}
		s.mu.Unlock()
		s.pass(6 * time.Minute)
		assert.Equal(t, []string{"a"}, s.lost())
	})
}

// TestANoticeIsNotWithdrawn by a report without it, even if the agent has restarted: a failed
// query of the provider looks like a withdrawal.
func TestANoticeIsNotWithdrawn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(t, "a")
		record := s.instances["a"]
		want := &instance.Notice{Action: "terminate", Deadline: time.Now().Add(2 * time.Minute).UTC()}
		session := s.Connect(&record)
		session.Report(&nstancev1.HealthReportRequest{TerminationNotice: &nstancev1.TerminationNotice{
			Action: want.Action, Deadline: timestamppb.New(want.Deadline),
		}})
		assert.Equal(t, want, s.State(&record).Notice)
		session.Report(&nstancev1.HealthReportRequest{})
		assert.Equal(t, want, s.State(&record).Notice, "after a report without it")
		session.Close()
		session = s.Connect(&record)
		defer session.Close()
		session.Report(&nstancev1.HealthReportRequest{Count: 1})
		assert.Equal(t, want, s.State(&record).Notice, "after the first report of another process")
	})
}
