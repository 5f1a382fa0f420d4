// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api

import (
	"context"
	"maps"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const (
	// sameErrorAfter is how long a watcher is not told the same of a group again.
	sameErrorAfter = 30 * time.Second
	// errorsWaiting is how many events wait for one watcher at most.
	errorsWaiting = 100
)

// Errors tells watchers of errors when they happen. It keeps nothing for those
// that come later (wire contract).
type Errors struct {
	closed chan struct{}

	mu       sync.Mutex
	watchers map[*errorWatcher]struct{}
}

// NewErrors returns Errors without watchers.
func NewErrors() *Errors {
	return &Errors{closed: make(chan struct{}), watchers: map[*errorWatcher]struct{}{}}
}

// ReportInstance tells those who watch the group's tenant that an instance could
// not be made or ended. The id is empty when there is no such instance. It never
// waits for a watcher.
func (e *Errors) ReportInstance(group instance.GroupKey, id string, err error) {
	text := err.Error()
	if id != "" {
		// The event names the instance. Without its id, what goes wrong in the
		// same way with many instances is one error.
		text = strings.ReplaceAll(text, id, "<instance>")
	}
	e.report(group.Tenant, &nstancev1.ErrorEvent{Group: group.Group, InstanceId: id, Error: text})
}

// ReportShard tells all watchers of an error that concerns the whole shard. It
// never waits for a watcher.
func (e *Errors) ReportShard(err error) {
	e.report("", &nstancev1.ErrorEvent{Error: err.Error()})
}

// Close ends all watches, present and future.
func (e *Errors) Close() {
	close(e.closed)
}

// report tells the watchers of a tenant, or all when it is empty.
func (e *Errors) report(tenant string, event *nstancev1.ErrorEvent) {
	now := time.Now()
	event.Timestamp = timestamppb.New(now)
	e.mu.Lock()
	defer e.mu.Unlock()
	for w := range e.watchers {
		if tenant == "" || w.tenant == tenant {
			w.add(event, now)
		}
	}
}

// watch returns a watcher of what happens from now on. The caller ends it with
// unwatch.
func (e *Errors) watch(tenant string) *errorWatcher {
	w := &errorWatcher{errors: e, tenant: tenant, wake: make(chan struct{}, 1), told: map[toldError]time.Time{}}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.watchers[w] = struct{}{}
	return w
}

func (e *Errors) unwatch(w *errorWatcher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.watchers, w)
}

// errorWatcher is what one stream has not been told yet. A stream that is slow
// misses the oldest.
type errorWatcher struct {
	errors *Errors
	tenant string
	// wake has an entry when there may be something to send.
	wake chan struct{}

	// The lock of errors guards what follows.
	waiting []*nstancev1.ErrorEvent
	// told is when the watcher was told of an error last.
	told map[toldError]time.Time
}

type toldError struct {
	group, text string
}

// add is called with the lock of errors held.
func (w *errorWatcher) add(event *nstancev1.ErrorEvent, now time.Time) {
	maps.DeleteFunc(w.told, func(_ toldError, at time.Time) bool { return now.Sub(at) >= sameErrorAfter })
	key := toldError{group: event.Group, text: event.Error}
	if _, recently := w.told[key]; recently {
		return
	}
	w.told[key] = now
	if len(w.waiting) == errorsWaiting {
		w.waiting = w.waiting[1:]
	}
	w.waiting = append(w.waiting, event)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// next waits for an event. It returns a gRPC status when ctx or errors ends.
func (w *errorWatcher) next(ctx context.Context) (*nstancev1.ErrorEvent, error) {
	return await(ctx, w.errors.closed, w.wake, w.take)
}

// take returns nil when there is nothing to send.
func (w *errorWatcher) take() *nstancev1.ErrorEvent {
	w.errors.mu.Lock()
	defer w.errors.mu.Unlock()
	if len(w.waiting) == 0 {
		return nil
	}
	event := w.waiting[0]
	w.waiting = w.waiting[1:]
	return event
}
