// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drain

import (
	"time"
)

// failure is the last error of the requests of a drain, and since when they fail.
type failure struct {
	since time.Time
	err   error
}

// setFailure stores the error of a request, nil after a success.
func (s *state) setFailure(err error, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.failure = failure{}
	case s.failure.err == nil:
		s.failure = failure{since: now, err: err}
	default:
		s.failure.err = err
	}
}

// lastingFailure returns the error with which requests have failed for so long that the
// drain counts as blocked, nil for none.
func (s *state) lastingFailure(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure.err == nil || now.Sub(s.failure.since) < blockedAfter {
		return nil
	}
	return s.failure.err
}

// failureReportAt returns when a failure of less than that has lasted for so long, zero for
// never.
func (s *state) failureReportAt(now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := s.failure.since.Add(blockedAfter); s.failure.err != nil && now.Before(at) {
		return at
	}
	return time.Time{}
}

// recordResult stores whether the requests of a step fail. A step without requests says
// nothing about it.
func (c *Controller) recordResult(s *state, done step, err error, now time.Time) {
	unreadable, watch := s.readErrors()
	switch {
	case err != nil:
		s.setFailure(err, now)
	case done == lookUpNode:
		s.setFailure(c.nodeLookup.failed(), now)
	case unreadable != nil:
		s.setFailure(unreadable, now)
	case done == nothing && watch != nil:
		s.setFailure(watch, now)
	case done != nothing && done != acknowledge:
		s.setFailure(nil, now)
	}
}

// readErrors returns why Pods of the Node are not known: because their DaemonSets cannot
// be read, or because the watch of Pods cannot be opened.
func (s *state) readErrors() (unreadable, watch error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watch != nil && !s.watch.synced() {
		watch = s.watch.failed()
	}
	return s.unreadableErr, watch
}
