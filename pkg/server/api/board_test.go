// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// shard is what a board shows: groups by key, each with running instances and a
// Node that they are to have.
type shard struct {
	groups  map[instance.GroupKey]*groups.Group
	running map[instance.GroupKey][]instance.Instance
	node    *corev1.Node
}

func (s *shard) Get(key instance.GroupKey) (*groups.Group, bool) {
	group, found := s.groups[key]
	return group, found
}

func (s *shard) List(key instance.GroupKey) []instance.Instance { return s.running[key] }

func (s *shard) ExpectedNode(instance.Spec) *corev1.Node { return s.node }

func newBoard() (*Board, *shard) {
	s := &shard{groups: map[instance.GroupKey]*groups.Group{}, running: map[instance.GroupKey][]instance.Instance{}}
	return NewBoard(s, s, s), s
}

func key(group string) instance.GroupKey {
	return instance.GroupKey{Tenant: "default", Group: group}
}

// shown returns an instance as its provider shows it.
func shown(id string, state instance.State) instance.Instance {
	return instance.Instance{Record: instance.Record{ID: id, ProviderID: "id-" + id}, Known: true, State: state}
}

// resize makes a group, or gives it another size.
func (s *shard) resize(b *Board, group string, size int32) {
	s.groups[key(group)] = &groups.Group{Key: key(group), Size: size}
	b.Refresh(key(group))
}

func (s *shard) remove(b *Board, group string) {
	delete(s.groups, key(group))
	b.Refresh(key(group))
}

// drain returns the events that wait for w.
func drain(w *watcher) []string {
	var events []string
	for event := w.take(); event != nil; event = w.take() {
		events = append(events, fmt.Sprint(event.Type, " ", event.Group.Key, " ", event.Group.Size))
	}
	return events
}

func expectEvents(t *testing.T, w *watcher, want ...string) {
	t.Helper()
	if got := drain(w); !slices.Equal(got, want) {
		t.Errorf("events are %q, want %q", got, want)
	}
}

// TestASlowWatcher reads nothing while much happens.
func TestASlowWatcher(t *testing.T) {
	b, s := newBoard()
	s.resize(b, "stays", 1)
	s.resize(b, "goes", 1)
	w := b.watch("default")
	for size := range int32(1000) {
		s.resize(b, "grows", size)
		s.resize(b, "comes and goes", size)
		s.remove(b, "comes and goes")
	}
	s.remove(b, "goes")
	s.resize(b, "goes and comes", 1)
	s.remove(b, "goes and comes")
	s.resize(b, "goes and comes", 2)
	if len(w.order) != 5 || len(w.waiting) != 5 {
		t.Errorf("%d and %d entries wait, want one a group", len(w.order), len(w.waiting))
	}
	// The latest state of each. One that went is told of as gone, though this
	// watcher was not told that it came.
	expectEvents(t, w, "TYPE_DELETE goes 0", "TYPE_UPSERT stays 1", "TYPE_UPSERT grows 999", "TYPE_DELETE comes and goes 0", "TYPE_UPSERT goes and comes 2")
	expectEvents(t, w)
	s.remove(b, "goes and comes")
	expectEvents(t, w, "TYPE_DELETE goes and comes 0")
}

func TestOnlyWhatDiffersIsTold(t *testing.T) {
	b, s := newBoard()
	s.resize(b, "workers", 2)
	w, other := b.watch("default"), b.watch("other")
	expectEvents(t, w, "TYPE_UPSERT workers 2")

	b.Refresh(key("workers"))
	b.Refresh(key("nothing"))
	onDemand := shown("o", instance.Running)
	onDemand.OnDemand = true
	nameless := shown("n", instance.Running)
	nameless.ProviderID = ""
	s.running[key("workers")] = []instance.Instance{
		shown("a", instance.Pending), shown("b", instance.Terminating), shown("c", instance.Stopped),
		shown("d", instance.Failed), shown("e", instance.Missing), onDemand, nameless,
	}
	b.Refresh(key("workers"))
	expectEvents(t, w, "TYPE_UPSERT workers 2")
	if status := b.list("default")[0]; status.ActualSize != 0 || len(status.ProviderIds) != 0 {
		t.Errorf("the status is %v, and nobody can use any of its instances", status)
	}

	draining := shown("b", instance.Running)
	draining.Drain = &instance.Drain{Reason: instance.ReasonExpired}
	s.running[key("workers")] = []instance.Instance{
		draining, shown("c", instance.Terminating), onDemand, shown("a", instance.Impaired),
	}
	b.Refresh(key("workers"))
	expectEvents(t, w, "TYPE_UPSERT workers 2")
	if status := b.list("default")[0]; status.ActualSize != 2 || !slices.Equal(status.ProviderIds, []string{"id-a", "id-b"}) {
		t.Errorf("the status is %v, want the running instances, sorted", status)
	}

	// In another order they are the same.
	slices.Reverse(s.running[key("workers")])
	b.Refresh(key("workers"))
	expectEvents(t, w)
	expectEvents(t, other)

	b.unwatch(w)
	s.resize(b, "workers", 3)
	expectEvents(t, w)
}

func TestNextWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, s := newBoard()
		w := b.watch("default")
		events, failed := make(chan *nstancev1.GroupEvent), make(chan error)
		ctx, cancel := context.WithCancel(t.Context())
		next := func() {
			event, err := w.next(ctx)
			if err != nil {
				failed <- err
				return
			}
			events <- event
		}
		go next()
		synctest.Wait()
		s.resize(b, "workers", 1)
		if event := <-events; event.Group.Key != "workers" {
			t.Errorf("got %v", event)
		}
		go next()
		cancel()
		if err := <-failed; status.Code(err) != codes.Canceled {
			t.Errorf("a caller that is gone gets %v", err)
		}

		// A board that closes ends watches that have something left to send, too.
		ctx = t.Context()
		go next()
		synctest.Wait()
		b.Close()
		if err := <-failed; status.Code(err) != codes.Unavailable {
			t.Errorf("when the board closes, a watch gets %v", err)
		}
		s.resize(b, "workers", 2)
		go next()
		if err := <-failed; status.Code(err) != codes.Unavailable {
			t.Errorf("after the board closed, a watch gets %v", err)
		}
	})
}
