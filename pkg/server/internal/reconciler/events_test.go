// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
)

// event is an event for operators.
type event struct {
	status string
	id     string
	reason string
	at     time.Time
}

// failure is a failure that the reconciler reported.
type failure struct {
	group instance.GroupKey
	id    string
	text  string
}

func (s *server) Draining(i instance.Instance) { s.record("draining", &i, i.Drain.Reason) }
func (s *server) Deleting(i instance.Instance) { s.record("deleting", &i, i.DeleteReason) }
func (s *server) Deleted(i instance.Instance)  { s.record("deleted", &i, i.DeleteReason) }

func (s *server) record(status string, i *instance.Instance, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, event{status, i.ID, reason, time.Now()})
}

func (s *server) reportChange(key instance.GroupKey) {
	var ids []string
	for _, i := range s.instances.List(key) {
		ids = append(ids, i.ProviderID)
	}
	shortfall := s.shortfallOf(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reported[key] = ids
	if before := s.shortfalls[key]; len(before) == 0 || before[len(before)-1] != shortfall {
		s.shortfalls[key] = append(before, shortfall)
	}
}

func (s *server) reportFailure(group instance.GroupKey, id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failures = append(s.failures, failure{group, id, err.Error()})
}

// takeEvents returns the events since its last call, as status, id and reason.
func (s *server) takeEvents() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var events []string
	for _, e := range s.events {
		events = append(events, e.status+" "+e.id+" "+e.reason)
	}
	s.events = nil
	return events
}

func (s *server) takeFailures() []failure {
	s.mu.Lock()
	defer s.mu.Unlock()
	failures := s.failures
	s.failures = nil
	return failures
}

// want compares the events since the last call.
func (s *server) want(events ...string) {
	s.t.Helper()
	assert.Equal(s.t, events, s.takeEvents(), "reported")
}

// wantCalls compares the calls to the cloud since the last call.
func (s *server) wantCalls(calls ...string) {
	s.t.Helper()
	assert.Equal(s.t, calls, describeCalls(s.cloud.takeCalls()), "called")
}
