// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// shard is the source of a StatusCache: groups by key, the instances of each, and
// the Node that all of them are expected to have.
type shard struct {
	groups    map[instance.GroupKey]*groups.Group
	instances map[instance.GroupKey][]instance.Instance
	node      *corev1.Node
	// lost: groups that do not exist were not deleted. hides: revisions are hidden.
	lost, hides bool
}

func (s *shard) Get(key instance.GroupKey) (*groups.Group, bool) {
	group, found := s.groups[key]
	return group, found
}

func (s *shard) Deleted(instance.GroupKey) bool { return !s.lost }

func (s *shard) HidesRevision(instance.GroupKey) bool { return s.hides }

func (s *shard) List(key instance.GroupKey) []instance.Instance { return s.instances[key] }

func (s *shard) ExpectedNode(provider.Spec) *corev1.Node { return s.node }

func newStatusCache() (*StatusCache, *shard) {
	s := &shard{groups: map[instance.GroupKey]*groups.Group{}, instances: map[instance.GroupKey][]instance.Instance{}}
	return NewStatusCache(s, s, s, nil), s
}

func key(group string) instance.GroupKey {
	return instance.GroupKey{Tenant: "default", Group: group}
}

// shown returns an instance as its provider shows it.
func shown(id string, state instance.State) instance.Instance {
	return instance.Instance{Record: instance.Record{ID: id, ProviderID: "id-" + id}, Known: true, State: state}
}

// resize makes a group, or gives it another size.
func (s *shard) resize(c *StatusCache, group string, size int32) {
	s.groups[key(group)] = &groups.Group{Key: key(group), Size: size}
	c.Refresh(key(group))
}

func (s *shard) remove(c *StatusCache, group string) {
	delete(s.groups, key(group))
	c.Refresh(key(group))
}

// takeEvents returns the pending events of w.
func takeEvents(w *groupWatcher) []string {
	return taken(w, func(event *nstancev1.GroupEvent) string {
		return fmt.Sprint(event.Type, " ", event.Group.Key, " ", event.Group.Size)
	})
}

// taken returns the pending events of a watcher as text.
func taken[E any](w interface{ take() *E }, describe func(*E) string) []string {
	var events []string
	for event := w.take(); event != nil; event = w.take() {
		events = append(events, describe(event))
	}
	return events
}

func expectEvents(t *testing.T, got []string, want ...string) {
	t.Helper()
	assert.Equal(t, want, got, "events")
}

// TestSlowWatcherGetsLatestStatuses with a watcher that reads after many changes.
func TestSlowWatcherGetsLatestStatuses(t *testing.T) {
	c, s := newStatusCache()
	s.resize(c, "stays", 1)
	s.resize(c, "deleted", 1)
	w := c.watch("default")
	for size := range int32(1000) {
		s.resize(c, "grows", size)
		s.resize(c, "created and deleted", size)
		s.remove(c, "created and deleted")
	}
	s.remove(c, "deleted")
	s.resize(c, "recreated", 1)
	s.remove(c, "recreated")
	s.resize(c, "recreated", 2)
	if len(w.order) != 5 || len(w.pending) != 5 {
		t.Errorf("%d and %d entries are pending, want one per group", len(w.order), len(w.pending))
	}
	// The latest status of each. A group that was created and deleted is sent as
	// deleted, although it was never sent to this watcher.
	expectEvents(t, takeEvents(w), "TYPE_DELETE deleted 0", "TYPE_UPSERT stays 1", "TYPE_UPSERT grows 999", "TYPE_DELETE created and deleted 0", "TYPE_UPSERT recreated 2")
	expectEvents(t, takeEvents(w))
	s.remove(c, "recreated")
	expectEvents(t, takeEvents(w), "TYPE_DELETE recreated 0")
}

func TestOnlyChangedStatusesAreSent(t *testing.T) {
	c, s := newStatusCache()
	s.resize(c, "workers", 2)
	w, other := c.watch("default"), c.watch("other")
	expectEvents(t, takeEvents(w), "TYPE_UPSERT workers 2")

	c.Refresh(key("workers"))
	c.Refresh(key("nothing"))
	onDemand := shown("o", instance.Running)
	onDemand.OnDemand = true
	nameless := shown("n", instance.Running)
	nameless.ProviderID = ""
	s.instances[key("workers")] = []instance.Instance{
		shown("a", instance.Pending), shown("b", instance.Terminating), shown("c", instance.Stopped),
		shown("d", instance.Failed), shown("e", instance.Missing), onDemand, nameless,
	}
	c.Refresh(key("workers"))
	expectEvents(t, takeEvents(w), "TYPE_UPSERT workers 2")
	if status := c.list("default")[0]; status.ActualSize != 0 || len(status.ProviderIds) != 0 {
		t.Errorf("the status is %v, want no usable instances", status)
	}

	draining := shown("b", instance.Running)
	draining.Drain = &instance.Drain{Reason: instance.ReasonExpired}
	s.instances[key("workers")] = []instance.Instance{
		draining, shown("c", instance.Terminating), onDemand, shown("a", instance.Impaired),
	}
	c.Refresh(key("workers"))
	expectEvents(t, takeEvents(w), "TYPE_UPSERT workers 2")
	if status := c.list("default")[0]; status.ActualSize != 2 || !slices.Equal(status.ProviderIds, []string{"id-a", "id-b"}) {
		t.Errorf("the status is %v, want the running instances, sorted", status)
	}

	// The order of the instances does not matter.
	slices.Reverse(s.instances[key("workers")])
	c.Refresh(key("workers"))
	expectEvents(t, takeEvents(w))
	expectEvents(t, takeEvents(other))

	c.watchers.unwatch(w)
	s.resize(c, "workers", 3)
	expectEvents(t, takeEvents(w))
}

func TestNextWaitsForGroupEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s := newStatusCache()
		w := c.watch("default")
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
		s.resize(c, "workers", 1)
		if event := <-events; event.Group.Key != "workers" {
			t.Errorf("got %v", event)
		}
		go next()
		cancel()
		if err := <-failed; status.Code(err) != codes.Canceled {
			t.Errorf("after the client cancelled, the watch returns %v", err)
		}

		// Close also closes watches that have pending events.
		ctx = t.Context()
		go next()
		synctest.Wait()
		c.Close()
		if err := <-failed; status.Code(err) != codes.Unavailable {
			t.Errorf("after Close, the watch returns %v", err)
		}
		s.resize(c, "workers", 2)
		go next()
		if err := <-failed; status.Code(err) != codes.Unavailable {
			t.Errorf("a watch that began after Close returns %v", err)
		}
	})
}

// TestLostGroup is listed with its instances, as a group that keeps them.
func TestLostGroup(t *testing.T) {
	c, s := newStatusCache()
	s.lost = true
	s.instances[key("lost")] = []instance.Instance{shown("a", instance.Running), shown("b", instance.Running), onDemand(shown("c", instance.Running))}
	c.Refresh(key("lost"))
	listed := c.list("default")
	require.Len(t, listed, 1)
	status := listed[0]
	require.False(t, status.Deleting)
	require.EqualValues(t, 2, status.Size)
	require.Equal(t, []string{"id-a", "id-b"}, status.ProviderIds)
	require.NotNil(t, status.Revision)
	require.Empty(t, status.Revision.Uid)
}

// TestHiddenRevision is reported as none, and the rest of the group as it is.
func TestHiddenRevision(t *testing.T) {
	c, s := newStatusCache()
	group := &groups.Group{Key: key("main"), Size: 3, Revision: &groups.Revision{UID: "u", Generation: 4}}
	s.groups[group.Key] = group
	for _, s.hides = range []bool{true, false} {
		c.Refresh(group.Key)
		status := c.list("default")[0]
		require.EqualValues(t, 3, status.Size)
		require.NotNil(t, status.Revision)
		require.Equal(t, s.hides, status.Revision.Uid == "")
	}
}

func onDemand(i instance.Instance) instance.Instance {
	i.OnDemand = true
	return i
}
