// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// named returns an instance of group workers of a tenant.
func named(tenant, id string) instance.Instance {
	return instance.Instance{Record: instance.Record{ID: id, Tenant: tenant, Group: "workers", ProviderID: "id-" + id}}
}

// takeInstanceEvents returns the pending events of w.
func takeInstanceEvents(w *instanceWatcher) []string {
	return taken(w, func(event *nstancev1.InstanceEvent) string { return event.InstanceId + " " + event.Status })
}

func TestInstanceEventContent(t *testing.T) {
	e := NewInstanceEvents()
	w := e.watch("default")
	i := named("default", "a")
	expect := func(want *nstancev1.InstanceEvent) {
		t.Helper()
		want.InstanceId, want.Tenant, want.Group, want.ProviderInstanceId = "a", "default", "workers", "id-a"
		if got := w.take(); !proto.Equal(got, want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
	}
	i.Drain = &instance.Drain{Reason: instance.ReasonExpired, StartedAt: epoch, DeleteAt: epoch.Add(time.Minute)}
	started, deleteAt := timestamppb.New(epoch), timestamppb.New(epoch.Add(time.Minute))
	e.Draining(i)
	expect(&nstancev1.InstanceEvent{Status: "pending_deletion", Reason: "expired", UnhealthyAt: started, DeleteAt: deleteAt})
	i.DeleteReason = instance.ReasonExpired
	e.Deleting(i)
	expect(&nstancev1.InstanceEvent{Status: "deleting", Reason: "expired", UnhealthyAt: started, DeleteAt: deleteAt})
	e.Deleted(i)
	expect(&nstancev1.InstanceEvent{Status: "deleted", Reason: "expired", UnhealthyAt: started, DeleteAt: deleteAt})
	// The reason of the deletion takes precedence over that of the drain.
	i.DeleteReason = instance.ReasonRequested
	e.Deleted(i)
	expect(&nstancev1.InstanceEvent{Status: "deleted", Reason: "requested", UnhealthyAt: started, DeleteAt: deleteAt})
	// Without a drain there are no times.
	i.Drain = nil
	e.Deleted(i)
	expect(&nstancev1.InstanceEvent{Status: "deleted", Reason: "requested"})
}

func TestInstanceEventRecipients(t *testing.T) {
	e := NewInstanceEvents()
	w, second, other := e.watch("default"), e.watch("default"), e.watch("other")
	e.Draining(named("default", "a"))
	e.Deleted(named("other", "b"))
	e.Deleting(named("third", "c"))
	late := e.watch("default")
	e.Deleting(named("default", "a"))
	expectEvents(t, takeInstanceEvents(w), "a pending_deletion", "a deleting")
	expectEvents(t, takeInstanceEvents(second), "a pending_deletion", "a deleting")
	expectEvents(t, takeInstanceEvents(other), "b deleted")
	// A later watcher does not get earlier events.
	expectEvents(t, takeInstanceEvents(late), "a deleting")
	e.watchers.unwatch(w)
	e.Deleted(named("default", "a"))
	expectEvents(t, takeInstanceEvents(w))
	expectEvents(t, takeInstanceEvents(second), "a deleted")
	for _, w := range []*instanceWatcher{second, other, late} {
		e.watchers.unwatch(w)
	}
	if len(e.watchers.byTenant) != 0 {
		t.Errorf("watchers are left: %v", e.watchers.byTenant)
	}
}

// TestPendingInstanceEventIsReplaced by a later event of the same status.
func TestPendingInstanceEventIsReplaced(t *testing.T) {
	e := NewInstanceEvents()
	w := e.watch("default")
	i := named("default", "a")
	for n := range 1000 {
		i.Drain = &instance.Drain{StartedAt: epoch, DeleteAt: epoch.Add(time.Duration(n) * time.Second)}
		e.Draining(i)
		e.Deleting(named("default", "b"))
	}
	e.Deleting(i)
	if len(w.order) != 3 || len(w.pending) != 3 {
		t.Errorf("%d and %d events are pending, want three", len(w.order), len(w.pending))
	}
	if event := w.take(); event.Status != EventPendingDeletion || !event.DeleteAt.AsTime().Equal(epoch.Add(999*time.Second)) {
		t.Errorf("the first event is %v", event)
	}
	// A status is sent again when it is published again.
	e.Draining(i)
	expectEvents(t, takeInstanceEvents(w), "b deleting", "a deleting", "a pending_deletion")
}

func TestNextWaitsForInstanceEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewInstanceEvents()
		w := e.watch("default")
		events, failed := make(chan *nstancev1.InstanceEvent), make(chan error)
		next := func(ctx context.Context) {
			event, err := w.next(ctx)
			if err != nil {
				failed <- err
				return
			}
			events <- event
		}
		go next(t.Context())
		synctest.Wait()
		e.Deleted(named("default", "a"))
		if event := <-events; event.InstanceId != "a" {
			t.Errorf("got %v", event)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go next(ctx)
		synctest.Wait()
		cancel()
		expectStatus(t, "after the client cancelled", <-failed, codes.Canceled, "")
		go next(t.Context())
		synctest.Wait()
		e.Close()
		expectStatus(t, "after Close", <-failed, codes.Unavailable, "stops serving")
		e.Deleted(named("default", "b"))
		go next(t.Context())
		expectStatus(t, "a watch that began after Close", <-failed, codes.Unavailable, "stops serving")
	})
}

// TestNoInstanceEventIsLostOrReordered with a thousand watchers. Every third begins
// to read after all events were published.
func TestNoInstanceEventIsLostOrReordered(t *testing.T) {
	const watchers, publishers, instances = 1000, 8, 100
	e := NewInstanceEvents()
	published := make(chan struct{})
	var watching sync.WaitGroup
	for n := range watchers {
		w := e.watch("default")
		watching.Go(func() {
			if n%3 == 0 {
				<-published
			}
			seen := map[string]string{}
			for range instances * 3 {
				event, err := w.next(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if after := seen[event.InstanceId]; after != before[event.Status] {
					t.Errorf("watcher %d: %s of %s came after %q", n, event.Status, event.InstanceId, after)
					return
				}
				seen[event.InstanceId] = event.Status
			}
			if event := w.take(); event != nil {
				t.Errorf("watcher %d: one event too many, %v", n, event)
			}
		})
	}
	var publishing sync.WaitGroup
	for publisher := range publishers {
		publishing.Go(func() {
			for n := publisher; n < instances; n += publishers {
				i := named("default", fmt.Sprint(n))
				e.Draining(i)
				e.Deleting(i)
				e.Deleted(i)
			}
		})
	}
	publishing.Wait()
	close(published)
	watching.Wait()
}

// before maps a status to the status that is sent before it.
var before = map[string]string{EventPendingDeletion: "", EventDeleting: EventPendingDeletion, EventDeleted: EventDeleting}

// BenchmarkInstanceEvents publishes events to watchers that read them.
func BenchmarkInstanceEvents(b *testing.B) {
	for _, watchers := range []int{1, 10, 1000} {
		b.Run(fmt.Sprintf("watchers=%d", watchers), func(b *testing.B) {
			e := NewInstanceEvents()
			ctx, cancel := context.WithCancel(b.Context())
			var watching sync.WaitGroup
			for range watchers {
				w := e.watch("default")
				watching.Go(func() {
					for {
						if _, err := w.next(ctx); err != nil {
							return
						}
					}
				})
			}
			ids := make([]instance.Instance, 1000)
			for n := range ids {
				ids[n] = named("default", fmt.Sprint(n))
			}
			n := 0
			for b.Loop() {
				e.Deleted(ids[n%len(ids)])
				n++
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n)/float64(watchers), "ns/event/watcher")
			cancel()
			watching.Wait()
		})
	}
}
