// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"slices"
	"time"

	"nstance.dev/operator/pkg/server/instance"
)

// event is something that operators watch.
type event struct {
	status string
	id     string
	reason string
	at     time.Time
}

// failure is something that the reconciler told of an instance.
type failure struct {
	group instance.GroupKey
	id    string
	text  string
}

func (s *server) Draining(i instance.Instance) { s.note("draining", &i, i.Drain.Reason) }
func (s *server) Deleting(i instance.Instance) { s.note("deleting", &i, i.DeleteReason) }
func (s *server) Deleted(i instance.Instance)  { s.note("deleted", &i, i.DeleteReason) }

func (s *server) note(status string, i *instance.Instance, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, event{status, i.ID, reason, time.Now()})
}

func (s *server) show(key instance.GroupKey) {
	var ids []string
	for _, i := range s.instances.List(key) {
		ids = append(ids, i.ProviderID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown[key] = ids
}

func (s *server) fail(group instance.GroupKey, id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = append(s.told, failure{group, id, err.Error()})
}

// takeEvents returns what operators were told since it was called last, as
// status, id and reason.
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
	told := s.told
	s.told = nil
	return told
}

// want compares what operators were told since the last time.
func (s *server) want(events ...string) {
	s.t.Helper()
	if got := s.takeEvents(); !slices.Equal(got, events) {
		s.t.Errorf("told of %q, want %q", got, events)
	}
}

// wantCalls compares the calls to the cloud since the last time.
func (s *server) wantCalls(calls ...string) {
	s.t.Helper()
	if got := describeCalls(s.cloud.takeCalls()); !slices.Equal(got, calls) {
		s.t.Errorf("called %q, want %q", got, calls)
	}
}
