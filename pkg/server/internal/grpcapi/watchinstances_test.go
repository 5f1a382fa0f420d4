// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

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
		i := instance.Instance{Record: instance.Record{ID: id, Tenant: "default", Group: "plain", ProviderID: "id-" + id}, Drain: &drain}
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

// TestInstanceWatcherThatDoesNotRead ends when too many events are pending for it. It loses
// none silently.
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
