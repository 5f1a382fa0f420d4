// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api

import (
	"cmp"
	"context"
	"sync"

	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// What becomes of an instance, in events of instances (wire contract).
const (
	// EventPendingDeletion: what runs on the instance is to be moved away.
	EventPendingDeletion = "pending_deletion"
	// EventDeleting: the instance is told to end.
	EventDeleting = "deleting"
	// EventDeleted: the instance is gone.
	EventDeleted = "deleted"
)

// InstanceEvents tells watchers of the ends of instances when they happen. It
// keeps nothing for those that come later (wire contract). Who tells of one
// instance from several goroutines answers for the order.
type InstanceEvents struct {
	closed chan struct{}

	mu sync.RWMutex
	// watchers by tenant.
	watchers map[string]map[*instanceWatcher]struct{}
}

// NewInstanceEvents returns InstanceEvents without watchers.
func NewInstanceEvents() *InstanceEvents {
	return &InstanceEvents{closed: make(chan struct{}), watchers: map[string]map[*instanceWatcher]struct{}{}}
}

// Draining tells those who watch the instance's tenant that it is to go when
// what runs on it has moved away. Like the next two it never waits for a watcher.
func (e *InstanceEvents) Draining(i instance.Instance) {
	e.tell(newInstanceEvent(&i, EventPendingDeletion))
}

// Deleting tells that the provider is told to end the instance.
func (e *InstanceEvents) Deleting(i instance.Instance) { e.tell(newInstanceEvent(&i, EventDeleting)) }

// Deleted tells that the instance is gone.
func (e *InstanceEvents) Deleted(i instance.Instance) { e.tell(newInstanceEvent(&i, EventDeleted)) }

// Close ends all watches, present and future.
func (e *InstanceEvents) Close() {
	close(e.closed)
}

func (e *InstanceEvents) tell(event *nstancev1.InstanceEvent) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for w := range e.watchers[event.Tenant] {
		w.add(event)
	}
}

// watch returns a watcher of what happens from now on. The caller ends it with
// unwatch.
func (e *InstanceEvents) watch(tenant string) *instanceWatcher {
	w := &instanceWatcher{events: e, tenant: tenant, wake: make(chan struct{}, 1), waiting: map[instanceNews]*nstancev1.InstanceEvent{}}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watchers[tenant] == nil {
		e.watchers[tenant] = map[*instanceWatcher]struct{}{}
	}
	e.watchers[tenant][w] = struct{}{}
	return w
}

func (e *InstanceEvents) unwatch(w *instanceWatcher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.watchers[w.tenant], w)
	if len(e.watchers[w.tenant]) == 0 {
		delete(e.watchers, w.tenant)
	}
}

// newInstanceEvent returns an event that nobody changes: all watchers share it.
func newInstanceEvent(i *instance.Instance, status string) *nstancev1.InstanceEvent {
	event := &nstancev1.InstanceEvent{
		InstanceId:         i.ID,
		Tenant:             i.Tenant,
		ProviderInstanceId: i.ProviderID,
		Group:              i.Group,
		Status:             status,
		Reason:             i.DeleteReason,
	}
	if i.Drain != nil {
		event.Reason = cmp.Or(i.DeleteReason, i.Drain.Reason)
		event.UnhealthyAt = timestamppb.New(i.Drain.StartedAt)
		event.DeleteAt = timestamppb.New(i.Drain.DeleteAt)
	}
	return event
}

// instanceWatcher is what one stream has not been told yet. A stream that is slow
// misses nothing: of each instance there are three things to tell, and what waits
// to be told is not told twice.
type instanceWatcher struct {
	events *InstanceEvents
	tenant string
	// wake has an entry when there may be something to send.
	wake chan struct{}

	mu sync.Mutex
	// order has the keys of waiting, the oldest first.
	order   []instanceNews
	waiting map[instanceNews]*nstancev1.InstanceEvent
}

// instanceNews is what is told of an instance.
type instanceNews struct {
	id, status string
}

func (w *instanceWatcher) add(event *nstancev1.InstanceEvent) {
	news := instanceNews{id: event.InstanceId, status: event.Status}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, already := w.waiting[news]; !already {
		w.order = append(w.order, news)
	}
	// Said again, it may be with another time: the last is right.
	w.waiting[news] = event
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// next waits for an event. It returns a gRPC status when ctx or events ends.
func (w *instanceWatcher) next(ctx context.Context) (*nstancev1.InstanceEvent, error) {
	return await(ctx, w.events.closed, w.wake, w.take)
}

// take returns nil when there is nothing to send.
func (w *instanceWatcher) take() *nstancev1.InstanceEvent {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.order) == 0 {
		return nil
	}
	news := w.order[0]
	w.order = w.order[1:]
	event := w.waiting[news]
	delete(w.waiting, news)
	return event
}
