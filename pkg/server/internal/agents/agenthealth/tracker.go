// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package agenthealth follows the reports of agents and decides which agents count as lost
// (docs/server.md#agents). It never compares clocks of different machines: every time comes
// from this server, and its monotonic clock measures every period.
package agenthealth

import (
	"context"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Options configure a Tracker. All fields are mandatory.
type Options struct {
	// Interval returns how often an agent has to report.
	Interval func() time.Duration
	// Changed is called after the state of an agent in a group has changed, and Check when
	// the provider has to be queried for an instance. Both must not block.
	Changed func(instance.GroupKey)
	Check   func(instance.GroupKey, string)
	// Failed is called with errors that concern all instances.
	Failed func(error)
}

// Tracker follows the agents of a shard during one term. It is safe for concurrent use.
type Tracker struct {
	Options

	mu     sync.Mutex
	agents map[string]*agent
	hold   hold
	counts counts
}

// agent is the state of one agent.
type agent struct {
	group instance.GroupKey
	// state and since become instance.Agent. Without a registration the state is AgentAwaited.
	state instance.AgentState
	since time.Time
	// registered is true when the agent has registered, in this term or before.
	registered bool
	link       link
	reason     string
	// refused becomes instance.Agent.Refused.
	refused string
	notice  *instance.Notice
	// session is the stream of the agent, or nil.
	session *Session
	// report is the latest report, and reportedAt is when it arrived.
	report     *nstancev1.HealthReportRequest
	reportedAt time.Time
}

// NewTracker returns a Tracker that knows no agents.
func NewTracker(o Options) *Tracker {
	return &Tracker{Options: o, agents: map[string]*agent{}}
}

// State returns the state of the agent of an instance that its provider reports as running.
func (t *Tracker) State(record *instance.Record) instance.Agent {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.agent(record)
	state := instance.Agent{State: a.state, Since: a.since, Reason: a.reason, Notice: a.notice, Refused: a.refused}
	if a.state == instance.AgentAwaited {
		state.NotReady = notReady(a.report)
	}
	return state
}

// agent returns the entry of an instance. A new entry is given the time of several reports
// before its silence counts.
func (t *Tracker) agent(record *instance.Record) *agent {
	a, found := t.agents[record.ID]
	if !found {
		now := time.Now()
		a = &agent{group: record.Key(), state: instance.AgentAwaited, since: now}
		if record.Registration != nil || record.Adopted {
			// It has registered before this server began to lead, or its record was
			// lost.
			a.state = instance.AgentUnknown
			t.register(a)
		}
		t.agents[record.ID] = a
	}
	return a
}

// Registered records that the agent of an instance has registered.
func (t *Tracker) Registered(record *instance.Record) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.register(t.agent(record))
}

// Refused records why an agent may not register. It decides nothing.
func (t *Tracker) Refused(id, reason string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a, found := t.agents[id]; found && !a.registered {
		a.refused = reason
	}
}

// register expects reports of an agent, the first after the time of several reports.
func (t *Tracker) register(a *agent) {
	if !a.registered {
		a.registered, a.refused = true, ""
		a.link.restart(time.Now().Add(maxMissed * t.Interval()))
	}
}

// LastReport returns the latest report of an instance, nil if the agent has not reported
// since this server leads, and when it arrived.
func (t *Tracker) LastReport(id string) (*nstancev1.HealthReportRequest, time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a, found := t.agents[id]; found {
		return a.report, a.reportedAt
	}
	return nil, time.Time{}
}

// Instances has the instances by id. It may also return deleted instances for a while.
type Instances interface {
	Get(id string) (instance.Instance, bool)
}

// Run judges the agents until ctx is done.
func (t *Tracker) Run(ctx context.Context, instances Instances) {
	for {
		// Often enough for the first of the checks, and for short intervals of tests.
		period := min(time.Second, max(10*time.Millisecond, t.Interval()/20))
		select {
		case <-ctx.Done():
			return
		case <-time.After(period):
		}
		t.judge(ctx, instances)
	}
}

// judge looks at all agents once.
func (t *Tracker) judge(ctx context.Context, instances Instances) {
	now, interval := time.Now(), t.Interval()
	expected, expired := t.expected(instances, now)
	var changed, check []subject
	reasons := map[string]string{}
	var failure error
	t.mu.Lock()
	silent := 0
	for _, s := range expected {
		if s.agent.link.silent(now, interval) {
			silent++
		}
	}
	t.counts = counts{expected: len(expected), silent: silent, expired: expired}
	if t.hold.update(silent, len(expected), now) {
		for _, s := range expected {
			// A silence that begins later counts from then.
			if s.agent.link.silent(now, interval) && now.After(s.agent.link.from) {
				s.agent.link.restart(now)
			}
		}
	}
	suppressed := 0
	for _, s := range expected {
		query, lost := s.agent.link.step(now, interval)
		if query {
			check = append(check, s)
		}
		switch {
		case lost == "":
		case t.hold.active(now):
			suppressed++
		default:
			s.agent.set(instance.AgentLost, lost, now)
			changed = append(changed, s)
			reasons[s.id] = lost
		}
	}
	if suppressed > 0 && !t.hold.reported {
		t.hold.reported = true
		failure = t.hold.failure(silent, len(expected))
	}
	t.mu.Unlock()
	logger := klog.FromContext(ctx)
	if failure != nil {
		logger.Error(failure, "Too many agents are silent, waiting")
		t.Failed(failure)
	}
	for _, s := range check {
		t.Check(s.agent.group, s.id)
	}
	for _, s := range changed {
		logger.Info("An agent is lost", "instance", s.id, "tenant", s.agent.group.Tenant, "group", s.agent.group.Group, "reason", reasons[s.id])
		t.Changed(s.agent.group)
	}
}

// subject is an agent whose reports are expected.
type subject struct {
	id    string
	agent *agent
}

// expected returns the agents of instances that run and are not being deleted, except lost agents,
// and how many agents have a certificate that has expired. It removes the agents of instances that
// no longer exist.
func (t *Tracker) expected(instances Instances, now time.Time) (expected []subject, expired int) {
	t.mu.Lock()
	all := make([]subject, 0, len(t.agents))
	for id, a := range t.agents {
		all = append(all, subject{id, a})
	}
	t.mu.Unlock()
	// The instances query the tracker.
	expected = all[:0]
	var removed []string
	var resting []subject
	for _, s := range all {
		i, found := instances.Get(s.id)
		if found && i.DeletedAt.IsZero() && i.Registration != nil && !i.Registration.ExpiresAt.IsZero() && now.After(i.Registration.ExpiresAt) {
			expired++
		}
		switch {
		case !found || !i.DeletedAt.IsZero():
			removed = append(removed, s.id)
		case i.Registration == nil && !i.Adopted || i.BeingDeleted():
		case i.Agent.State == instance.AgentNone:
			resting = append(resting, s)
		case i.Agent.State == instance.AgentLost:
		default:
			expected = append(expected, s)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range removed {
		delete(t.agents, id)
	}
	for _, s := range resting {
		// If the machine is started again, its agent needs a moment to connect.
		s.agent.link.restart(now.Add(maxMissed * t.Interval()))
	}
	for _, s := range expected {
		// A registration is stored a moment before Registered is called, and if its response
		// was lost, Registered is not called.
		t.register(s.agent)
	}
	return expected, expired
}

// set changes the state of an agent.
func (a *agent) set(state instance.AgentState, reason string, now time.Time) {
	a.state, a.reason, a.since = state, reason, now
}

// Session is one stream of reports.
type Session struct {
	tracker  *Tracker
	id       string
	agent    *agent
	replaced chan struct{}
}

// Connect begins the stream of an agent that has registered. It replaces the agent's previous
// stream. The caller calls Close when the stream has ended.
func (t *Tracker) Connect(record *instance.Record) *Session {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.agent(record)
	s := &Session{tracker: t, id: record.ID, agent: a, replaced: make(chan struct{})}
	if a.session != nil {
		close(a.session.replaced)
	}
	t.register(a)
	a.session = s
	return s
}

// Replaced is closed when the agent has another stream.
func (s *Session) Replaced() <-chan struct{} { return s.replaced }

// Report records a report. Its count and its time come from the agent, which may have
// restarted and whose clock may be wrong: they decide nothing.
func (s *Session) Report(report *nstancev1.HealthReportRequest) {
	now := time.Now()
	t := s.tracker
	t.mu.Lock()
	a := s.agent
	if a.session != s {
		t.mu.Unlock()
		return
	}
	a.report, a.reportedAt = report, now
	a.link.connected = true
	a.link.restart(now)
	next := instance.AgentReporting
	if notReady(report) != "" && a.state != instance.AgentReporting {
		// What has served stays up: a new leader hears it from agents that have been ready.
		next = instance.AgentAwaited
	}
	changed := a.state != next
	if changed {
		a.set(next, "", now)
	}
	if a.notice == nil && report.GetTerminationNotice() != nil {
		// A notice is never withdrawn: a failed query of the provider looks like a
		// withdrawal.
		a.notice = newNotice(report.GetTerminationNotice(), now)
		changed = true
	}
	t.mu.Unlock()
	if changed {
		t.Changed(a.group)
	}
}

// maxNotReady is the maximum length of the reason why a machine is not ready, in bytes
// (docs/protocol.md#extensions).
const maxNotReady = 200

// notReady returns why the machine of a report, which may be nil, is not ready. Only people read
// it.
func notReady(report *nstancev1.HealthReportRequest) string {
	reason := report.GetNotReady()
	return strings.ToValidUTF8(reason[:min(len(reason), maxNotReady)], "")
}

// Close ends the stream. The provider is queried, unless the agent has another stream. A
// stream without a report changes nothing: an agent that only connects stays silent.
func (s *Session) Close() {
	t := s.tracker
	t.mu.Lock()
	disconnected := s.agent.session == s && s.agent.link.connected
	if s.agent.session == s {
		s.agent.session = nil
	}
	if disconnected {
		s.agent.link.connected = false
		s.agent.link.restart(time.Now())
	}
	t.mu.Unlock()
	if disconnected {
		t.Check(s.agent.group, s.id)
	}
}

// newNotice returns the notice of a report that arrived at a time. If its deadline has
// passed, the agent's clock differs, since the machine still runs.
func newNotice(n *nstancev1.TerminationNotice, now time.Time) *instance.Notice {
	notice := &instance.Notice{Action: n.GetAction()}
	if n.GetDeadline().IsValid() && n.GetDeadline().AsTime().After(now) {
		notice.Deadline = n.GetDeadline().AsTime()
	}
	return notice
}
