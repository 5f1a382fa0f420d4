// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// takeErrors returns the texts of the pending events of w, each with its group.
func takeErrors(w *errorWatcher) []string {
	return taken(w, func(event *nstancev1.ErrorEvent) string { return event.Group + ": " + event.Error })
}

func TestErrorRecipients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewErrors()
		w, second, other := e.watch("default"), e.watch("default"), e.watch("other")
		e.ReportInstance(key("workers"), "knd1", errors.New("node knd1: knd1 is broken"))
		want := &nstancev1.ErrorEvent{Group: "workers", InstanceId: "knd1", Error: "node <instance>: <instance> is broken", Timestamp: timestamppb.Now()}
		for _, watcher := range []*errorWatcher{w, second} {
			if got := watcher.take(); !proto.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		}
		e.ReportInstance(instance.GroupKey{Tenant: "other", Group: "workers"}, "", errors.New("full"))
		e.ReportShard(errors.New("bad"))
		expectEvents(t, takeErrors(w), ": bad")
		expectEvents(t, takeErrors(second), ": bad")
		expectEvents(t, takeErrors(other), "workers: full", ": bad")
		// A later watcher does not get earlier errors.
		late := e.watch("default")
		expectEvents(t, takeErrors(late))
		e.watchers.unwatch(w)
		e.ReportShard(errors.New("worse"))
		expectEvents(t, takeErrors(w))
		expectEvents(t, takeErrors(late), ": worse")
	})
}

// An error of a provider may have any bytes. An event that cannot be encoded would end the
// stream, with the errors that are queued.
func TestErrorsThatAreNoText(t *testing.T) {
	e := NewErrors()
	w := e.watch("default")
	e.ReportInstance(key("workers"), "knd1", errors.New("knd1: caf\xe9 is full"))
	e.ReportShard(errors.New("\xff"))
	for _, want := range []string{"<instance>: caf\uFFFD is full", "\uFFFD"} {
		event := w.take()
		if event.GetError() != want {
			t.Errorf("got %q, want %q", event.GetError(), want)
		}
		if _, err := proto.Marshal(event); err != nil {
			t.Errorf("the event cannot be sent: %v", err)
		}
	}
	// The status of a group and a declined request have texts of the provider too.
	s := newService(t)
	c := NewStatusCache(StatusOptions{Groups: s.Store, Instances: s.Instances, Nodes: s.provider, Shortfalls: &lacking{1, "caf\xe9 is full"}})
	group, _ := s.Store.Get(key("plain"))
	if _, err := proto.Marshal(c.statusOf(group, nil)); err != nil {
		t.Errorf("the status of the group cannot be sent: %v", err)
	}
	if _, err := proto.Marshal(status.Convert(outOfCapacity("%s", "caf\xe9 is full")).Proto()); err != nil {
		t.Errorf("the status of a call cannot be sent: %v", err)
	}
}

func TestSameErrorIsSentOnceIn30Seconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewErrors()
		recent := recentErrors{}
		w := e.watchers.watch(&errorWatcher{tenant: "default", skip: recent.repeats})
		report := func(group, id, text string) { e.ReportInstance(key(group), id, errors.New(text)) }
		report("workers", "knd1", "knd1 is broken")
		report("workers", "knd2", "knd2 is broken")
		report("workers", "", "full")
		report("more", "", "full")
		expectEvents(t, takeErrors(w), "workers: <instance> is broken", "workers: full", "more: full")

		for range 29 {
			<-time.After(time.Second)
			report("workers", "", "full")
		}
		expectEvents(t, takeErrors(w))
		// A later watcher has not received it.
		late := e.watch("default")
		report("workers", "", "full")
		expectEvents(t, takeErrors(w))
		expectEvents(t, takeErrors(late), "workers: full")
		<-time.After(time.Second)
		report("workers", "", "full")
		report("workers", "", "full")
		expectEvents(t, takeErrors(w), "workers: full")

		// Old errors are forgotten.
		<-time.After(time.Hour)
		report("workers", "", "other")
		if len(recent) != 1 {
			t.Errorf("%d errors are recorded, want 1", len(recent))
		}
	})
}

func TestSlowErrorWatcherLosesOldest(t *testing.T) {
	e := NewErrors()
	w := e.watch("default")
	for i := range 1000 {
		e.ReportShard(fmt.Errorf("error %d", i))
	}
	got := takeErrors(w)
	if len(got) != maxPendingErrors || got[0] != ": error 900" || got[len(got)-1] != ": error 999" {
		t.Errorf("of 1000 errors %d are pending, from %q to %q", len(got), got[0], got[len(got)-1])
	}
	e.ReportShard(errors.New("next"))
	expectEvents(t, takeErrors(w), ": next")
}

func TestNextWaitsForError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := NewErrors()
		w := e.watch("default")
		events, failed := make(chan *nstancev1.ErrorEvent), make(chan error)
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
		e.ReportShard(errors.New("bad"))
		if event := <-events; event.Error != "bad" {
			t.Errorf("got %v", event)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go next(ctx)
		synctest.Wait()
		cancel()
		if err := <-failed; status.Code(err) != codes.Canceled {
			t.Errorf("after the client cancelled, the watch returns %v", err)
		}
		go next(t.Context())
		synctest.Wait()
		e.Close()
		if err := <-failed; status.Code(err) != codes.Unavailable {
			t.Errorf("after Close, the watch returns %v", err)
		}
	})
}

// lacking is the shortfall of every group.
type lacking struct {
	missing int32
	message string
}

func (l *lacking) Of(*groups.Group, []instance.Instance) (missing int32, message string) {
	return l.missing, l.message
}

// TestShortfallEvents: each change of a shortfall is one event of the group, and refreshes
// without a change send no event. A watcher that was slow gets the latest shortfall.
func TestShortfallEvents(t *testing.T) {
	c, s := newStatusCache()
	shortfall := &lacking{}
	c.shortfalls = shortfall
	s.resize(c, "workers", 3)
	w := c.watch("default")
	take := func() []string {
		return taken(w, func(event *nstancev1.GroupEvent) string {
			return fmt.Sprintf("%s of %d lacks %d: %s", event.Group.Key, event.Group.Size,
				event.Group.GetShortfall().GetMissing(), event.Group.GetShortfall().GetMessage())
		})
	}
	expectEvents(t, take(), "workers of 3 lacks 0: ")
	for _, step := range []struct {
		lacking
		want string
	}{
		{lacking{2, "out of capacity"}, "workers of 3 lacks 2: out of capacity"},
		{lacking{1, "out of capacity"}, "workers of 3 lacks 1: out of capacity"},
		{lacking{1, "quota is used up"}, "workers of 3 lacks 1: quota is used up"},
		{lacking{2, "quota is used up"}, "workers of 3 lacks 2: quota is used up"},
		{lacking{}, "workers of 3 lacks 0: "},
	} {
		*shortfall = step.lacking
		c.Refresh(key("workers"))
		expectEvents(t, take(), step.want)
		for range 100 {
			c.Refresh(key("workers"), key("workers"))
		}
		expectEvents(t, take())
	}
	// Changes at the same time are one event.
	*shortfall = lacking{4, "out of capacity"}
	s.instances[key("workers")] = []instance.Instance{shown("a", instance.Running)}
	s.resize(c, "workers", 5)
	expectEvents(t, take(), "workers of 5 lacks 4: out of capacity")
	// A slow watcher gets the last event.
	for missing := range int32(4) {
		shortfall.missing = missing
		c.Refresh(key("workers"))
	}
	expectEvents(t, take(), "workers of 5 lacks 3: out of capacity")
}
