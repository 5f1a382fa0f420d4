// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func TestInstanceCallsCheckIDAndTenant(t *testing.T) {
	s := newService(t)
	record := s.add()
	calls := map[string]func(ctx context.Context, id string) error{
		"GetInstanceStatus": func(ctx context.Context, id string) error {
			_, err := s.GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: id})
			return err
		},
		"DeleteInstance": func(ctx context.Context, id string) error {
			_, err := s.DeleteInstance(ctx, &nstancev1.DeleteInstanceRequest{InstanceId: id})
			return err
		},
		"AcknowledgeDrained": func(ctx context.Context, id string) error {
			_, err := s.AcknowledgeDrained(ctx, &nstancev1.DrainAckRequest{InstanceId: id})
			return err
		},
	}
	for name, call := range calls {
		expectStatus(t, name, call(s.ctx(), ""), codes.InvalidArgument, "instance_id: Required value")
		expectStatus(t, name, call(s.ctx(), newID(t, "knd")), codes.NotFound, "is not known")
		expectStatus(t, name, call(as(t.Context(), "other"), record.ID), codes.PermissionDenied, "another tenant")
	}
	if i, _ := s.Instances.Get(record.ID); i.BeingDeleted() || len(s.takeChanged()) != 0 {
		t.Errorf("the rejected calls left %+v", i)
	}
}

func TestInstanceStatus(t *testing.T) {
	s := newService(t)
	record := s.add()
	var deleteAt *timestamppb.Timestamp
	expect := func(want string) {
		t.Helper()
		got, err := s.GetInstanceStatus(s.ctx(), &nstancev1.GetInstanceStatusRequest{InstanceId: record.ID})
		require.NoError(t, err)
		full := &nstancev1.InstanceStatusResponse{
			InstanceId: record.ID, Tenant: "default", Status: want,
			CreatedAt: timestamppb.New(epoch), ProviderInstanceId: "id-" + record.ID, DeleteAt: deleteAt,
		}
		if !proto.Equal(got, full) {
			t.Errorf("got  %v\nwant %v", got, full)
		}
	}
	for _, tc := range []struct {
		state instance.State
		want  string
	}{
		{instance.Pending, "pending"}, {instance.Running, "running"}, {instance.Impaired, "running"},
		{instance.Stopped, "stopped"}, {instance.Failed, "failed"}, {instance.Terminating, "terminating"},
	} {
		s.show(record.ID, tc.state)
		expect(tc.want)
	}
	s.provider.Remove(record.ID)
	expect("terminating")
	s.show(record.ID, instance.Running)
	require.NoError(s.t, s.Instances.StartDrain(t.Context(), record.ID, instance.Drain{
		Reason: instance.ReasonExpired, StartedAt: epoch, DeleteAt: epoch.Add(time.Hour),
	}))
	// From now on its deletion has a deadline.
	deleteAt = timestamppb.New(epoch.Add(time.Hour))
	expect("running")
	require.NoError(s.t, s.Instances.SetDeleting(t.Context(), record.ID, instance.ReasonExpired))
	expect("terminating")
	s.provider.Remove(record.ID)
	expect("terminating")
	require.NoError(s.t, s.Instances.Remove(t.Context(), record.ID))
	expect("terminated")

	// Without a recorded provider id it cannot be found.
	created, err := s.CreateInstance(s.ctx(), createRequest("plain"))
	require.NoError(s.t, err)
	s.show(created.InstanceId, instance.Running)
	got, err := s.GetInstanceStatus(s.ctx(), &nstancev1.GetInstanceStatusRequest{InstanceId: created.InstanceId})
	if err != nil || got.Status != "pending" {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestDeleteInstance(t *testing.T) {
	s := newService(t)
	managed := s.add()
	expect := func(id, want string) {
		t.Helper()
		got, err := s.DeleteInstance(s.ctx(), &nstancev1.DeleteInstanceRequest{InstanceId: id})
		if err != nil || got.Status != want {
			t.Errorf("got %v, %v, want %s", got, err, want)
		}
	}
	created, err := s.CreateInstance(s.ctx(), createRequest("plain"))
	require.NoError(s.t, err)
	s.takeChanged()
	for _, id := range []string{managed.ID, created.InstanceId} {
		expect(id, "deleting")
		if i, _ := s.Instances.Get(id); i.DeleteReason != instance.ReasonRequested || i.Drain != nil {
			t.Errorf("it is left as %+v", i)
		}
		if changed := s.takeChanged(); !slices.Equal(changed, []instance.GroupKey{managed.Key()}) {
			t.Errorf("changed groups are %v", changed)
		}
		// It is already being deleted.
		expect(id, "deleting")
		if changed := s.takeChanged(); len(changed) != 0 {
			t.Errorf("changed again are %v", changed)
		}
		s.provider.Remove(id)
		require.NoError(s.t, s.Instances.Remove(t.Context(), id))
		expect(id, "deleted")
	}

	// A draining instance is deleted at once too.
	draining := s.add()
	require.NoError(s.t, s.Instances.StartDrain(t.Context(), draining.ID, instance.Drain{Reason: instance.ReasonExpired, StartedAt: epoch}))
	expect(draining.ID, "deleting")
	if i, _ := s.Instances.Get(draining.ID); i.DeleteReason != instance.ReasonRequested {
		t.Errorf("it is left as %+v", i)
	}
	// The request is recorded also when it is being deleted for another reason.
	deleting := s.add()
	require.NoError(s.t, s.Instances.SetDeleting(t.Context(), deleting.ID, instance.ReasonExpired))
	expect(deleting.ID, "deleting")
	if i, _ := s.Instances.Get(deleting.ID); i.DeleteReason != instance.ReasonExpired || i.DeletionRequestedAt.IsZero() {
		t.Errorf("it is left as %+v", i)
	}
	s.Instances.Purge(t.Context(), epoch.Add(time.Hour))
	_, err = s.DeleteInstance(s.ctx(), &nstancev1.DeleteInstanceRequest{InstanceId: managed.ID})
	expectStatus(t, "an instance whose record was purged", err, codes.NotFound, managed.ID)
}

func TestAcknowledgeDrained(t *testing.T) {
	s := newService(t)
	acknowledge := func(id string) {
		t.Helper()
		_, err := s.AcknowledgeDrained(s.ctx(), &nstancev1.DrainAckRequest{InstanceId: id})
		require.NoError(s.t, err)
	}
	record := s.add()
	drain := instance.Drain{Reason: instance.ReasonConfigDrift, StartedAt: epoch, DeleteAt: epoch.Add(time.Hour)}
	require.NoError(s.t, s.Instances.StartDrain(t.Context(), record.ID, drain))
	drain.Acknowledged = true
	for range 2 {
		acknowledge(record.ID)
		if i, _ := s.Instances.Get(record.ID); i.Drain == nil || *i.Drain != drain {
			t.Errorf("the drain is %+v, want %+v", i.Drain, drain)
		}
		if changed := s.takeChanged(); !slices.Equal(changed, []instance.GroupKey{record.Key()}) {
			t.Errorf("changed groups are %v", changed)
		}
	}
	require.NoError(s.t, s.Instances.SetDeleting(t.Context(), record.ID, drain.Reason))
	acknowledge(record.ID)
	s.provider.Remove(record.ID)
	require.NoError(s.t, s.Instances.Remove(t.Context(), record.ID))
	s.takeChanged()
	acknowledge(record.ID)
	if changed := s.takeChanged(); len(changed) != 0 {
		t.Errorf("for a deleted instance, changed groups are %v", changed)
	}

	// A new leader has no record of the drain.
	lost := s.add()
	acknowledge(lost.ID)
	if i, _ := s.Instances.Get(lost.ID); i.Drain == nil || !i.Drain.Acknowledged || i.Drain.Reason != instance.ReasonUnhealthy {
		t.Errorf("without a drain, the drain is %+v", i.Drain)
	}
	if changed := s.takeChanged(); !slices.Equal(changed, []instance.GroupKey{lost.Key()}) {
		t.Errorf("changed groups are %v", changed)
	}
}

// TestDeleteInstanceIsDurable with a next server that has only the storage.
func TestDeleteInstanceIsDurable(t *testing.T) {
	s := newService(t)
	record := s.add()
	_, err := s.DeleteInstance(s.ctx(), &nstancev1.DeleteInstanceRequest{InstanceId: record.ID})
	require.NoError(t, err)
	s.start(filepath.Join(t.TempDir(), "cache"))
	if i, _ := s.Instances.Get(record.ID); i.DeleteReason != instance.ReasonRequested {
		t.Errorf("the next server has %+v", i)
	}
	got, err := s.GetInstanceStatus(s.ctx(), &nstancev1.GetInstanceStatusRequest{InstanceId: record.ID})
	if err != nil || got.Status != "terminating" {
		t.Errorf("the next server returns %v, %v", got, err)
	}
}

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
	// The reason of the deletion takes precedence over the reason of the drain.
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

// watchInstances opens a stream and waits for its header.
func watchInstances(t *testing.T, operator nstancev1.OperatorServiceClient) grpc.ServerStreamingClient[nstancev1.InstanceEvent] {
	t.Helper()
	w, err := operator.WatchInstances(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
	_, err = w.Header()
	require.NoError(t, err)
	return w
}

// receive returns the next event.
func receive(t *testing.T, w grpc.ServerStreamingClient[nstancev1.InstanceEvent]) *nstancev1.InstanceEvent {
	t.Helper()
	event, err := w.Recv()
	require.NoError(t, err)
	return event
}

func (s *service) startDrain(id string, drain instance.Drain) {
	s.t.Helper()
	require.NoError(s.t, s.Instances.StartDrain(s.t.Context(), id, drain))
}

func TestWatchInstancesBeginsWithDrainingInstances(t *testing.T) {
	s := newService(t)
	first, second, deleting, foreign := s.add(), s.add(), s.add(), instance.Record{ID: newID(t, "knd"), Tenant: "other", Group: "plain", CreatedAt: epoch}
	require.NoError(s.t, s.Instances.Add(t.Context(), foreign))
	s.add()
	drain := instance.Drain{Reason: instance.ReasonConfigDrift, StartedAt: epoch, DeleteAt: epoch.Add(time.Minute)}
	later := drain
	later.StartedAt = epoch.Add(time.Second)
	for _, id := range []string{first.ID, foreign.ID, deleting.ID} {
		s.startDrain(id, drain)
	}
	s.startDrain(second.ID, later)
	require.NoError(s.t, s.Instances.SetDeleting(t.Context(), deleting.ID, drain.Reason))

	operator := dial(t, s)
	w := watchInstances(t, operator)
	want := func(id string, drain instance.Drain) *nstancev1.InstanceEvent {
		i := instance.Instance{Record: instance.Record{ID: id, Tenant: "default", Group: "plain", ProviderID: "id-" + id}, Addresses: []netip.Addr{address}, Drain: &drain}
		return newInstanceEvent(&i, EventPendingDeletion)
	}
	for _, want := range []*nstancev1.InstanceEvent{want(first.ID, drain), want(second.ID, later)} {
		if got := receive(t, w); !proto.Equal(got, want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
	}
	i, _ := s.Instances.Get(deleting.ID)
	s.InstanceEvents.Deleted(i)
	if got := receive(t, w); got.InstanceId != deleting.ID || got.Status != EventDeleted || got.Reason != instance.ReasonConfigDrift {
		t.Errorf("got %v", got)
	}
}

// TestWatchInstancesLosesNoEvent starts watchers while instances are drained and
// deleted. Each watcher gets every drain that is in progress or begins later, and
// never an earlier status after a later one.
func TestWatchInstancesLosesNoEvent(t *testing.T) {
	const watchers, instances = 50, 200
	s := newService(t)
	operator := dial(t, s)
	records := make([]instance.Record, instances)
	for n := range records {
		records[n] = s.add()
	}
	last := s.add()
	order := []string{EventPendingDeletion, EventDeleting, EventDeleted}

	var watching sync.WaitGroup
	watch := func() {
		w, err := operator.WatchInstances(t.Context(), &emptypb.Empty{})
		if err != nil {
			t.Error(err)
			return
		}
		seen := map[string]string{}
		for {
			event, err := w.Recv()
			if err != nil {
				t.Error(err)
				return
			}
			if event.InstanceId == last.ID {
				break
			}
			if slices.Index(order, event.Status) < slices.Index(order, seen[event.InstanceId]) {
				t.Errorf("%s of %s came after %s", event.Status, event.InstanceId, seen[event.InstanceId])
			}
			seen[event.InstanceId] = event.Status
		}
		for n, record := range records {
			// Every second instance stays draining.
			if n%2 == 0 && seen[record.ID] != EventPendingDeletion {
				t.Errorf("of %s a watcher got %q", record.ID, seen[record.ID])
			}
		}
	}
	for n, record := range records {
		if n%(instances/watchers) == 0 {
			watching.Go(watch)
		}
		publish := func(publish func(instance.Instance)) {
			i, _ := s.Instances.Get(record.ID)
			publish(i)
		}
		s.startDrain(record.ID, instance.Drain{Reason: instance.ReasonExpired, StartedAt: epoch})
		publish(s.InstanceEvents.Draining)
		if n%2 == 0 {
			continue
		}
		require.NoError(s.t, s.Instances.SetDeleting(t.Context(), record.ID, instance.ReasonExpired))
		publish(s.InstanceEvents.Deleting)
		require.NoError(s.t, s.Instances.Remove(t.Context(), record.ID))
		publish(s.InstanceEvents.Deleted)
	}
	s.startDrain(last.ID, instance.Drain{Reason: instance.ReasonExpired, StartedAt: epoch.Add(time.Hour)})
	i, _ := s.Instances.Get(last.ID)
	s.InstanceEvents.Draining(i)
	watching.Wait()
}

// TestSlowInstanceWatcherBlocksNoOther with a watcher that reads nothing until the
// other has all events, which are more than its connection buffers.
func TestSlowInstanceWatcherBlocksNoOther(t *testing.T) {
	const events = 20_000
	s := newService(t)
	operator := dial(t, s)
	slow, fast := watchInstances(t, operator), watchInstances(t, operator)
	ids := make([]string, events)
	for n := range ids {
		ids[n] = newID(t, "knd")
		s.InstanceEvents.Deleted(named("default", ids[n]))
	}
	expectDeleted(t, "fast", fast, ids)
	expectDeleted(t, "slow", slow, ids)
}

// expectDeleted expects the deleted event of each instance, in order.
func expectDeleted(t *testing.T, who string, w grpc.ServerStreamingClient[nstancev1.InstanceEvent], ids []string) {
	t.Helper()
	for n, id := range ids {
		if event := receive(t, w); event.InstanceId != id || event.Status != EventDeleted {
			t.Fatalf("the %s watcher's event %d is %v, want the deletion of %s", who, n, event, id)
		}
	}
}

// TestInstanceWatcherThatDoesNotRead: the watch ends when too many events are pending, and
// loses no event silently.
func TestInstanceWatcherThatDoesNotRead(t *testing.T) {
	e := NewInstanceEvents()
	w := e.watch("default")
	for n := range maxPendingInstanceEvents {
		e.Deleted(named("default", fmt.Sprint(n)))
	}
	if event, err := w.next(t.Context()); err != nil || event.InstanceId != "0" {
		t.Fatalf("got %v, %v", event, err)
	}
	e.Deleted(named("default", "one"))
	e.Deleted(named("default", "too many"))
	for range 2 {
		if event, err := w.next(t.Context()); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("got %v, %v", event, err)
		}
	}
	if len(w.pending) > 0 {
		t.Errorf("%d events are pending", len(w.pending))
	}
}
