// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package agenthealth

import (
	"time"

	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// Session is one stream of reports.
type Session struct {
	tracker  *Tracker
	id       string
	agent    *agent
	replaced chan struct{}
}

// Connect begins the stream of an agent that has registered. It replaces the stream that
// the agent had before. The caller calls Close when the stream has ended.
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

// Report records a report. Its count and its time are those of the agent, which may have
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
	changed := a.state != instance.AgentReporting
	if changed {
		a.set(instance.AgentReporting, "", now)
	}
	if a.notice == nil && report.GetTerminationNotice() != nil {
		// It is never withdrawn: a failed query of the provider looks like that.
		a.notice = newNotice(report.GetTerminationNotice(), now)
		changed = true
	}
	t.mu.Unlock()
	if changed {
		t.Changed(a.group)
	}
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

// newNotice returns the notice of a report that arrived at a time. A deadline that has
// passed is that of another clock, since the machine still runs.
func newNotice(n *nstancev1.TerminationNotice, now time.Time) *instance.Notice {
	notice := &instance.Notice{Action: n.GetAction()}
	if n.GetDeadline().IsValid() && n.GetDeadline().AsTime().After(now) {
		notice.Deadline = n.GetDeadline().AsTime()
	}
	return notice
}
