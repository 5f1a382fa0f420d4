// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package informer

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/operator/shard"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func group(key string, size int32) shard.Group {
	return shard.Group{Key: key, Size: size}
}

func sizes(c *groupCache) map[string]int32 {
	out := map[string]int32{}
	for key, group := range c.groups {
		out[key] = group.Size
	}
	return out
}

// mustPut adds a group that no limit refuses.
func mustPut(c *groupCache, group shard.Group) {
	if _, err := c.put(group); err != nil {
		panic(err)
	}
}

func TestListDoesNotRevertLaterChanges(t *testing.T) {
	tests := []struct {
		name string
		// cached is in the cache before the list is started.
		cached []shard.Group
		// meanwhile runs between the start of the list and its reply.
		meanwhile func(*groupCache)
		reply     []shard.Group
		want      map[string]int32
		// changed are the keys of the groups that the reply changes.
		changed []string
	}{{
		name:      "a list without changes changes nothing",
		cached:    []shard.Group{group("a", 1), group("b", 2)},
		meanwhile: func(*groupCache) {},
		reply:     []shard.Group{group("a", 1), group("b", 2)},
		want:      map[string]int32{"a": 1, "b": 2},
	}, {
		name:      "a list adds, changes and removes",
		cached:    []shard.Group{group("a", 1), group("b", 2)},
		meanwhile: func(*groupCache) {},
		reply:     []shard.Group{group("b", 3), group("c", 4)},
		want:      map[string]int32{"b": 3, "c": 4},
		changed:   []string{"a", "b", "c"},
	}, {
		name:      "a change during the list stays",
		cached:    []shard.Group{group("a", 1), group("b", 2)},
		meanwhile: func(c *groupCache) { mustPut(c, group("a", 5)) },
		reply:     []shard.Group{group("a", 1), group("b", 3)},
		want:      map[string]int32{"a": 5, "b": 3},
		changed:   []string{"b"},
	}, {
		name:      "a group that was added during the list stays",
		meanwhile: func(c *groupCache) { mustPut(c, group("new", 1)) },
		want:      map[string]int32{"new": 1},
	}, {
		name:      "a group that was removed during the list stays removed",
		cached:    []shard.Group{group("a", 1)},
		meanwhile: func(c *groupCache) { c.remove("a") },
		reply:     []shard.Group{group("a", 1)},
		want:      map[string]int32{},
	}, {
		name:   "an event without a change protects the group too",
		cached: []shard.Group{group("a", 2)},
		meanwhile: func(c *groupCache) {
			if keys, err := c.put(group("a", 2)); keys != nil || err != nil {
				panic("an event without a change changed something")
			}
		},
		reply: []shard.Group{group("a", 1)},
		want:  map[string]int32{"a": 2},
	}}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c := newGroupCache("a", holders{})
			for _, group := range test.cached {
				mustPut(c, group)
			}
			c.startList(1)
			test.meanwhile(c)
			changed := c.finishList(test.reply)
			slices.Sort(changed)
			if got := sizes(c); !maps.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
			if !slices.Equal(changed, test.changed) {
				t.Errorf("changed %v, want %v", changed, test.changed)
			}
			// The next list is newer than all these changes.
			c.startList(1)
			c.finishList([]shard.Group{group("z", 9)})
			if got := sizes(c); !maps.Equal(got, map[string]int32{"z": 9}) {
				t.Errorf("after the next list: got %v", got)
			}
		})
	}
}

func TestObserve(t *testing.T) {
	g := NewGroups(Options{})
	var handled []string
	g.AddHandler(shard.GroupHandler{OnGroup: func(shard, key string) { handled = append(handled, shard+"/"+key) }})
	g.Observe("a", group("workers", 1))
	if _, ok := g.Get("a", "workers"); ok || handled != nil {
		t.Error("a shard that is not served has a group")
	}

	g.start("a")
	g.Observe("a", group("workers", 1))
	lists := group("workers", 1)
	lists.ListsInstances = true
	g.Observe("a", lists)
	if got, _ := g.Get("a", "workers"); got.ListsInstances {
		t.Error("the reply makes the cache report that there are no instances, which is unknown")
	}
	running := shard.Group{Key: "workers", Size: 1, ActualSize: 1, ProviderIDs: []string{"kwok://a/1"},
		ListsInstances: true, Instances: []shard.Instance{{ID: "knd1", State: shard.InstanceRunning}, {ID: "knd2", State: shard.InstancePending}}}
	g.update("a", func(c *groupCache) []string {
		changed, err := c.put(running)
		require.NoError(t, err)
		return changed
	})
	handled = nil
	reply := group("workers", 3)
	reply.RemoveFirst, reply.Shape = []string{"knd1"}, &shard.NodeShape{Architecture: "arm64"}
	want := running
	want.Size, want.RemoveFirst, want.Shape = reply.Size, reply.RemoveFirst, reply.Shape
	for _, reported := range []struct {
		lists     bool
		instances []shard.Instance
	}{{false, nil}, {true, nil}, {true, []shard.Instance{{ID: "knd1", State: shard.InstanceTerminating}}}} {
		reply.ListsInstances, reply.Instances = reported.lists, reported.instances
		g.Observe("a", reply)
		if got, _ := g.Get("a", "workers"); !got.Equal(want) {
			t.Errorf("after a reply that reports instances %+v: got %+v, want the new configuration and the cached instances: %+v", reported, got, want)
		}
	}
	if handled != nil {
		t.Errorf("handled %v, want nothing: the caller has the reply", handled)
	}
}

func TestReachableNeedsAListAfterTheWatchOpened(t *testing.T) {
	c := newGroupCache("a", holders{})
	expect := func(what string, synced, reachable, failed bool) {
		t.Helper()
		if c.synced() != synced || c.reachable() != reachable || (c.reason != nil) != failed {
			t.Errorf("after %s: synced %t, reachable %t, reason %v; want %t, %t, a reason %t", what, c.synced(), c.reachable(), c.reason, synced, reachable, failed)
		}
	}
	expect("nothing", false, false, false)
	c.finishList(nil)
	expect("a list without a watch", false, false, false)
	c.watchOpened()
	expect("the watch opened", true, false, false)
	c.finishList(nil)
	expect("a list", true, true, false)
	c.listFailed(status.Error(codes.DeadlineExceeded, "too late"))
	expect("a list failed", true, false, true)
	c.finishList(nil)
	expect("the next list", true, true, false)
	c.watchLost(status.Error(codes.Unavailable, "reset"))
	expect("the watch was lost", true, false, true)
	c.watchOpened()
	expect("the watch opened again", true, false, true)
	c.watchLost(status.Error(codes.Unavailable, "reset"))
	c.finishList(nil)
	expect("a list without the watch", true, false, true)
	c.watchOpened()
	expect("the watch opened once more", true, false, true)
	c.finishList(nil)
	expect("a list", true, true, false)
	c.restart()
	expect("a restart", false, false, false)
}

func TestReasonChangesOnlyWithItsKind(t *testing.T) {
	c := newGroupCache("a", holders{})
	refused := fmt.Errorf("list: %w", status.Error(codes.Unavailable, "connection refused"))
	late := fmt.Errorf("listing: %w", status.Error(codes.DeadlineExceeded, "too late"))
	denied := fmt.Errorf("watching: %w", status.Error(codes.Unauthenticated, "expired"))
	wrong := fmt.Errorf("list: %w", &shard.WrongServerError{Want: "nstance://prod/a", Got: "nstance://prod/b"})
	blocked, err := status.New(codes.Unavailable, "the groups are lost").WithDetails(&errdetails.ErrorInfo{
		Domain: nstancev1.ErrorDomain, Reason: nstancev1.ReasonNotServing,
	})
	require.NoError(t, err)
	for _, step := range []struct{ err, want error }{
		{refused, refused},
		{blocked.Err(), blocked.Err()},
		{late, late},
		{refused, late},
		{denied, denied},
		{late, late},
		{wrong, wrong},
		{refused, refused},
	} {
		c.listFailed(step.err)
		if !errors.Is(c.reason, step.want) {
			t.Errorf("after %v the reason is %v, want %v", step.err, c.reason, step.want)
		}
	}
}

func TestHandlersRunInOrderAndMayReadTheCache(t *testing.T) {
	g := NewGroups(Options{})
	var handled []string
	handler := func(name string) shard.GroupHandler {
		return shard.GroupHandler{
			OnGroup: func(shard, key string) {
				group, _ := g.Get(shard, key)
				handled = append(handled, fmt.Sprintf("%s: %s/%s has size %d", name, shard, key, group.Size))
			},
			OnShard: func(shard string) {
				handled = append(handled, fmt.Sprintf("%s: %s has synced %t", name, shard, g.HasSynced(shard)))
			},
		}
	}
	g.AddHandler(handler("first"))
	g.AddHandler(shard.GroupHandler{})
	g.AddHandler(handler("second"))
	g.start("a")
	g.update("a", func(c *groupCache) []string {
		c.watchOpened()
		c.startList(1)
		return c.finishList([]shard.Group{group("workers", 2)})
	})
	g.stop("a", true)
	want := []string{
		"first: a/workers has size 2", "second: a/workers has size 2",
		"first: a has synced true", "second: a has synced true",
		"first: a has synced false", "second: a has synced false",
	}
	if !slices.Equal(handled, want) {
		t.Errorf("handled\n%q, want\n%q", handled, want)
	}
}

func TestSyncedNeedsEveryShard(t *testing.T) {
	g := NewGroups(Options{})
	for _, id := range []string{"a", "b"} {
		g.start(id)
	}
	g.update("a", func(c *groupCache) []string {
		c.watchOpened()
		return c.finishList(nil)
	})
	for _, test := range []struct {
		shards []string
		want   bool
	}{
		{nil, true},
		{[]string{"a"}, true},
		{[]string{"a", "b"}, false},
		{[]string{"a", "unknown"}, false},
	} {
		if got := g.Synced(test.shards); got != test.want {
			t.Errorf("Synced(%v) = %t, want %t", test.shards, got, test.want)
		}
	}
}

func TestEventKeepsTheShapeOfNodes(t *testing.T) {
	reported := func(size int32, memory string) shard.Group {
		group := group("a", size)
		group.Shape = &shard.NodeShape{Capacity: map[string]string{"memory": memory}}
		return group
	}
	c := newGroupCache("a", holders{})
	mustPut(c, reported(1, "8Gi"))
	before := c.groups["a"].Shape
	if mustPut(c, reported(2, "8Gi")); c.groups["a"].Size != 2 || c.groups["a"].Shape != before {
		t.Error("an event that changes the size replaces an equal shape")
	}
	if mustPut(c, reported(2, "9Gi")); c.groups["a"].Shape.Capacity["memory"] != "9Gi" {
		t.Errorf("the shape is %v, want 9Gi of memory", c.groups["a"].Shape)
	}
	if mustPut(c, group("a", 2)); c.groups["a"].Shape != nil {
		t.Error("a shape that is no longer reported stays")
	}
}

func TestGroupsShareTheCapacityOfAnInstanceType(t *testing.T) {
	c := newGroupCache("a", holders{})
	put := func(key, instanceType, memory string) map[string]string {
		group := group(key, 1)
		group.InstanceType = instanceType
		group.Shape = &shard.NodeShape{Capacity: map[string]string{"memory": memory}, Labels: shard.LabelsOf(map[string]string{"group": key})}
		mustPut(c, group)
		cached := c.groups[key].Shape
		if want := (&shard.NodeShape{Capacity: map[string]string{"memory": memory}, Labels: shard.LabelsOf(map[string]string{"group": key})}); !cached.Equal(want) {
			t.Errorf("group %s has the shape %v, want %v", key, cached, want)
		}
		return cached.Capacity
	}
	same := func(a, b map[string]string) bool { return reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() }
	small := put("a", "small", "8Gi")
	if !same(put("b", "small", "8Gi"), small) {
		t.Error("groups with one instance type do not share its capacity")
	}
	put("c", "large", "16Gi")
	if grown := put("d", "small", "9Gi"); !same(put("e", "small", "9Gi"), grown) {
		t.Error("groups do not share the changed capacity of an instance type")
	}
	group := group("f", 1)
	group.InstanceType = "small"
	if mustPut(c, group); c.groups["f"].Shape != nil {
		t.Error("a group has a shape that is not reported")
	}
}

// A change of a group visits the shards that have it, and no others.
func TestShardsWithAGroup(t *testing.T) {
	g := NewGroups(Options{})
	for _, id := range []string{"b", "a", "c"} {
		g.start(id)
	}
	put := func(id, key string) {
		g.update(id, func(c *groupCache) []string {
			mustPut(c, group(key, 1))
			return nil
		})
	}
	put("b", "workers")
	put("a", "workers")
	put("a", "workers")
	put("c", "other")
	before := g.ShardsWith("workers")
	assert.Equal(t, []string{"a", "b"}, before)
	assert.Empty(t, g.ShardsWith("unknown"))

	// Lists, deletions and removed shards.
	g.update("c", func(c *groupCache) []string {
		c.startList(1)
		return c.finishList([]shard.Group{group("workers", 1)})
	})
	assert.Empty(t, g.ShardsWith("other"))
	assert.Equal(t, []string{"a", "b", "c"}, g.ShardsWith("workers"))
	g.update("a", func(c *groupCache) []string { return c.remove("workers") })
	g.update("a", func(c *groupCache) []string { return c.remove("workers") })
	assert.Equal(t, []string{"b", "c"}, g.ShardsWith("workers"))
	g.stop("c", false)
	assert.Equal(t, []string{"b", "c"}, g.ShardsWith("workers"), "groups stay while a shard is not served")
	g.start("c")
	g.stop("b", true)
	assert.Equal(t, []string{"c"}, g.ShardsWith("workers"), "the groups of a removed shard are dropped")
	assert.Equal(t, []string{"a", "b"}, before, "a result that was returned")
	g.stop("c", true)
	assert.Empty(t, g.holders)
}
