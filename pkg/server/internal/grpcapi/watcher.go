// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// watcher queues events until one stream has sent them. At most one event per
// key is pending: an event replaces the pending event with the same key and keeps
// its place in the queue.
type watcher[Key comparable, Event any] struct {
	// tenant restricts the events to the events of one tenant.
	tenant string
	// limit is the maximum number of pending events. Beyond it the oldest is
	// dropped, or the watch ends if endAtLimit is set. Zero means no limit.
	limit      int
	endAtLimit bool
	// skip reports whether an event is left out. It is called with mu locked. Default: no
	// event is left out.
	skip func(*Event) bool

	closed <-chan struct{}
	// ready has an entry when there may be an event to send.
	ready chan struct{}

	mu sync.Mutex
	// order has the keys of pending, the oldest first.
	order   []Key
	pending map[Key]*Event
	// ended is true after the limit has ended the watch.
	ended bool
}

// add queues an event. It never waits for the stream.
func (w *watcher[Key, Event]) add(key Key, event *Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended || w.skip != nil && w.skip(event) {
		return
	}
	if _, found := w.pending[key]; !found {
		switch full := w.limit > 0 && len(w.order) == w.limit; {
		case full && w.endAtLimit:
			w.ended, w.order, w.pending = true, nil, nil
			w.signal()
			return
		case full:
			delete(w.pending, w.order[0])
			w.order = w.order[1:]
		}
		w.order = append(w.order, key)
	}
	w.pending[key] = event
	w.signal()
}

// signal wakes the stream.
func (w *watcher[Key, Event]) signal() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// hasEnded reports whether the limit has ended the watch.
func (w *watcher[Key, Event]) hasEnded() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ended
}

// take removes the oldest pending event and returns it, or nil.
func (w *watcher[Key, Event]) take() *Event {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.order) == 0 {
		return nil
	}
	key := w.order[0]
	w.order = w.order[1:]
	event := w.pending[key]
	delete(w.pending, key)
	return event
}

// next waits for an event. When ctx is done or the watch is closed, it returns a
// gRPC status as the error.
func (w *watcher[Key, Event]) next(ctx context.Context) (*Event, error) {
	for {
		// ctx is checked first, so that a stream with many events stops too.
		select {
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-w.closed:
			return nil, status.Error(codes.Unavailable, "the server stops serving this shard")
		default:
		}
		if event := w.take(); event != nil {
			return event, nil
		}
		if w.hasEnded() {
			return nil, status.Errorf(codes.ResourceExhausted, "more than %d events are pending, watch again", w.limit)
		}
		select {
		case <-ctx.Done():
		case <-w.closed:
		case <-w.ready:
		}
	}
}

// send sends the events of w until the stream's context is done or the watch is
// closed.
func (w *watcher[Key, Event]) send(stream grpc.ServerStreamingServer[Event]) error {
	for {
		event, err := w.next(stream.Context())
		if err != nil {
			return err
		}
		if err := stream.Send(event); err != nil {
			return err
		}
	}
}

// watchers is the set of all watchers of one kind of event.
type watchers[Key comparable, Event any] struct {
	closed chan struct{}

	mu       sync.RWMutex
	byTenant map[string]map[*watcher[Key, Event]]struct{}
}

func newWatchers[Key comparable, Event any]() *watchers[Key, Event] {
	return &watchers[Key, Event]{closed: make(chan struct{}), byTenant: map[string]map[*watcher[Key, Event]]struct{}{}}
}

// watch adds w, which has no pending events yet. The caller removes it with
// unwatch.
func (s *watchers[Key, Event]) watch(w *watcher[Key, Event]) *watcher[Key, Event] {
	w.closed, w.ready, w.pending = s.closed, make(chan struct{}, 1), map[Key]*Event{}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byTenant[w.tenant] == nil {
		s.byTenant[w.tenant] = map[*watcher[Key, Event]]struct{}{}
	}
	s.byTenant[w.tenant][w] = struct{}{}
	return w
}

func (s *watchers[Key, Event]) unwatch(w *watcher[Key, Event]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byTenant[w.tenant], w)
	if len(s.byTenant[w.tenant]) == 0 {
		delete(s.byTenant, w.tenant)
	}
}

// publish queues an event for the watchers of a tenant. They share the event, so
// it must not change any more. Like publishToAll it never waits for a stream.
func (s *watchers[Key, Event]) publish(tenant string, key Key, event *Event) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for w := range s.byTenant[tenant] {
		w.add(key, event)
	}
}

// publishToAll queues an event for the watchers of all tenants; newEvent returns the event
// for each tenant.
func (s *watchers[Key, Event]) publishToAll(newEvent func(tenant string) (Key, *Event)) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for tenant, watchers := range s.byTenant {
		key, event := newEvent(tenant)
		for w := range watchers {
			w.add(key, event)
		}
	}
}

// close closes all watches, present and future.
func (s *watchers[Key, Event]) close() {
	close(s.closed)
}
