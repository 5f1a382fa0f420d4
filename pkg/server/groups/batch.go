// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package groups

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/instance"
)

// request is the change of one group by one caller.
type request struct {
	ctx context.Context
	key instance.GroupKey
	// plan returns the edit to store and the group after it, nil if the group no longer
	// exists. current is the stored state, and before is the group, or nil. It
	// is called with writeMu locked.
	plan func(current edit, before *Group) (next edit, after *Group, err error)
	// request is the request that later log lines name.
	request audit.Request
	// deletion is true for the deletion of a group.
	deletion bool

	// before is the group before the request, set by store.
	before *Group
	// The results are set when do has returned.
	group   *Group
	changed bool
	err     error
}

// fail replaces the results by an error of the storage.
func (r *request) fail(err error) {
	r.group, r.changed, r.err = nil, false, fmt.Errorf("change group %s: %w", r.key, err)
}

// batch has the requests that one write stores.
type batch struct {
	requests []*request
	// full is closed when there are as many requests as are wanted; nil if no write waits for it.
	full   chan struct{}
	wanted int
	// stored is closed when the requests have their results.
	stored chan struct{}
}

// gatherTime is how long a write waits at most for the requests of callers that have just received their
// results: much longer than they need for the next request, and much shorter than a write.
const gatherTime = 300 * time.Microsecond

// do carries out a request and returns when it has its results. Requests that
// arrive during a write are stored together by the next one. The first of them
// makes that write. Callers that receive their results together send their next requests together, so
// that the write waits for them for a moment: it would have only the first of these requests otherwise.
func (s *Store) do(r *request) {
	s.batchMu.Lock()
	b, first := s.batch, s.batch == nil
	if first {
		b = &batch{stored: make(chan struct{})}
		s.batch = b
	}
	b.requests = append(b.requests, r)
	if b.full != nil && len(b.requests) == b.wanted {
		close(b.full)
	}
	s.batchMu.Unlock()
	if !first {
		<-b.stored
		return
	}

	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	s.gather(b)
	s.batchMu.Lock()
	s.batch = nil
	s.batchMu.Unlock()
	s.store(b.requests)
	s.expect(b)
	close(b.stored)
}

// expect sets how many requests the write after b waits for: the callers of b, and those that wait
// already. A single caller does not wait, and neither do two that take turns. The caller has locked
// writeMu.
func (s *Store) expect(b *batch) {
	s.batchMu.Lock()
	defer s.batchMu.Unlock()
	waiting := 0
	if s.batch != nil {
		waiting = len(s.batch.requests)
	}
	s.expected = 0
	if len(b.requests) > 1 || waiting > 1 {
		s.expected = len(b.requests) + waiting
	}
}

// gather waits until a batch has the expected requests, at most for gatherTime. The caller has locked
// writeMu.
func (s *Store) gather(b *batch) {
	s.batchMu.Lock()
	if len(b.requests) >= s.expected {
		s.batchMu.Unlock()
		return
	}
	full := make(chan struct{})
	b.full, b.wanted = full, s.expected
	s.batchMu.Unlock()
	timer := time.NewTimer(s.gatherTime)
	defer timer.Stop()
	select {
	case <-full:
	case <-timer.C:
	}
}

// store carries out requests in their order and stores them in one write. A request that is
// invalid or needs no write does not depend on the write. The changes become visible only
// after the write. The caller has locked writeMu.
func (s *Store) store(requests []*request) {
	planned := &plannedWrite{content: s.content, groups: map[instance.GroupKey]*Group{}}
	for _, r := range requests {
		s.plan(planned, r)
	}
	if len(planned.requests) == 0 {
		return
	}
	ctx, cancel := contextOf(planned.requests)
	defer cancel()
	if err := s.object.write(ctx, planned.content); err != nil {
		for _, r := range planned.requests {
			r.fail(err)
		}
		return
	}
	s.content = planned.content
	s.setDeletedBy(planned.requests)
	s.publish(planned.groups)
	s.logRequests(planned.requests)
}

// plannedWrite is the effect of the requests of a batch before it is written.
type plannedWrite struct {
	content content
	// groups are the changed groups, nil for a deleted group.
	groups map[instance.GroupKey]*Group
	// requests are the requests whose results depend on the write.
	requests []*request
}

// plan adds a request to a write, and sets the results of the request for the case that the
// write succeeds.
func (s *Store) plan(planned *plannedWrite, r *request) {
	current := planned.content.current(r.key)
	before, changed := planned.groups[r.key]
	if !changed {
		before, _ = s.Get(r.key)
	}
	// An earlier request of the batch may have determined the result of this request.
	dependent := changed || current.retired != s.content.retired[r.key.Tenant]
	next, after, err := r.plan(current, before)
	if err != nil {
		r.err = err
		if dependent {
			planned.requests = append(planned.requests, r)
		}
		return
	}
	if !dependent && s.isStored(current, next) {
		r.group = before
		return
	}
	if next.group != nil && !r.deletion {
		if r.err = s.validateLimits(planned.content, r.key, next.group); r.err != nil {
			// Requests that are not stored yet may have reached the limit.
			if len(planned.requests) > 0 {
				planned.requests = append(planned.requests, r)
			}
			return
		}
	}
	if err := deadline.Check(r.ctx); err != nil {
		r.fail(err)
		return
	}
	if after != nil {
		after.Causes = before.causes().after(r.request, before, after)
	}
	r.before, r.group, r.changed = before, after, before.etagOrEmpty() != after.etagOrEmpty() || current.mark != next.mark
	planned.content = planned.content.apply(r.key, next)
	planned.groups[r.key] = after
	planned.requests = append(planned.requests, r)
}

// logRequests writes the audit lines of requests that were stored.
func (s *Store) logRequests(requests []*request) {
	for _, r := range requests {
		switch {
		case r.err != nil || !r.changed:
		case r.deletion:
			s.logDeletion(r, r.group)
		default:
			s.logChange(r.ctx, r.request, r.before, r.group)
		}
	}
}

// setDeletedBy records which requests have deleted groups, before reconciliations see that
// they were deleted.
func (s *Store) setDeletedBy(requests []*request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range requests {
		switch {
		case r.err != nil:
		case r.group != nil:
			delete(s.deletedBy, r.key)
		case r.changed:
			s.deletedBy[r.key] = r.request
		}
	}
}

// isStored reports whether next can be acknowledged without a write, because
// the stored object is known and already contains it. After a failed write the
// object may differ from content.
func (s *Store) isStored(current, next edit) bool {
	return s.object.unconfirmed == nil && current.retired == next.retired && current.mark == next.mark && reflect.DeepEqual(current.group, next.group)
}

// publish makes changed groups visible, and the marks of the content. A nil group is
// removed.
func (s *Store) publish(changed map[instance.GroupKey]*Group) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks = s.content.marks
	for key, group := range changed {
		if group != nil {
			s.groups[key] = group
		} else {
			delete(s.groups, key)
		}
	}
}

// contextOf returns the context of a write for requests. It is done when the
// contexts of all of them are: a caller that gives up does not fail the others.
func contextOf(requests []*request) (context.Context, context.CancelFunc) {
	if len(requests) == 1 {
		return requests[0].ctx, func() {}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(requests[0].ctx))
	waiting := new(atomic.Int64)
	waiting.Store(int64(len(requests)))
	stops := make([]func() bool, len(requests))
	for n, r := range requests {
		stops[n] = context.AfterFunc(r.ctx, func() {
			if waiting.Add(-1) == 0 {
				cancel()
			}
		})
	}
	return ctx, func() {
		for _, stop := range stops {
			stop()
		}
		cancel()
	}
}
