// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/testing/settingstest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// shard is the source of a StatusCache: groups by key, the instances of each group, and the
// expected Node of all instances.
type shard struct {
	groups    map[instance.GroupKey]*groups.Group
	instances map[instance.GroupKey][]instance.Instance
	node      *corev1.Node
	// lost: missing groups were not deleted. hides: revisions are hidden.
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
	return NewStatusCache(StatusOptions{Groups: s, Instances: s, Nodes: s}), s
}

// list returns all groups of the tenant of the tests.
func (c *StatusCache) list() []*nstancev1.GroupStatus {
	return c.listSince("default", "").GetGroups()
}

func key(group string) instance.GroupKey {
	return instance.GroupKey{Tenant: "default", Group: group}
}

// shown returns an instance as its provider lists it.
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
	// The watcher gets the latest status of each group. A group that was created and deleted
	// is sent as deleted, although it was never sent to this watcher.
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
	if status := c.list()[0]; status.ActualSize != 0 || len(status.ProviderIds) != 0 {
		t.Errorf("the status is %v, want no usable instances", status)
	}

	draining := shown("b", instance.Running)
	draining.Drain = &instance.Drain{Reason: instance.ReasonExpired}
	s.instances[key("workers")] = []instance.Instance{
		draining, shown("c", instance.Terminating), onDemand, shown("a", instance.Impaired),
	}
	c.Refresh(key("workers"))
	expectEvents(t, takeEvents(w), "TYPE_UPSERT workers 2")
	if status := c.list()[0]; status.ActualSize != 2 || !slices.Equal(status.ProviderIds, []string{"id-a", "id-b"}) {
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
	listed := c.list()
	require.Len(t, listed, 1)
	status := listed[0]
	require.False(t, status.Deleting)
	require.EqualValues(t, 2, status.Size)
	require.Equal(t, []string{"id-a", "id-b"}, status.ProviderIds)
	require.NotNil(t, status.Revision)
	require.Empty(t, status.Revision.Uid)
}

// TestHiddenRevision: the group is reported without its revision, and otherwise unchanged.
func TestHiddenRevision(t *testing.T) {
	c, s := newStatusCache()
	group := &groups.Group{Key: key("main"), Size: 3, Revision: &groups.Revision{UID: "u", Generation: 4}}
	s.groups[group.Key] = group
	for _, s.hides = range []bool{true, false} {
		c.Refresh(group.Key)
		status := c.list()[0]
		require.EqualValues(t, 3, status.Size)
		require.NotNil(t, status.Revision)
		require.Equal(t, s.hides, status.Revision.Uid == "")
	}
}

func onDemand(i instance.Instance) instance.Instance {
	i.OnDemand = true
	return i
}

// listed returns an instance as a group's status lists it.
func listed(i instance.Instance) *nstancev1.ManagedInstance {
	return &nstancev1.ManagedInstance{
		Id: i.ID, ProviderId: i.ProviderID, Status: instanceStatus(&i), CreatedAt: timestamppb.New(i.CreatedAt),
	}
}

// TestAllManagedInstancesAreListed by id, with the status that GetInstanceStatus
// returns.
func TestAllManagedInstancesAreListed(t *testing.T) {
	made := func(id string, state instance.State, change func(*instance.Instance)) instance.Instance {
		i := shown(id, state)
		i.CreatedAt = epoch.Add(time.Duration(id[0]) * time.Second)
		if change != nil {
			change(&i)
		}
		return i
	}
	instances := []instance.Instance{
		made("h", instance.Missing, nil),
		made("g", instance.Running, func(i *instance.Instance) { i.DeleteReason = instance.ReasonScaleDown }),
		made("f", instance.Terminating, nil),
		made("e", instance.Failed, nil),
		made("d", instance.Stopped, nil),
		made("c", instance.Running, func(i *instance.Instance) { i.Drain = &instance.Drain{Reason: instance.ReasonScaleDown} }),
		made("b", instance.Running, nil),
		made("a", instance.Pending, func(i *instance.Instance) { i.ProviderID = "" }),
	}
	want := map[string]string{
		"a": "pending", "b": "running", "c": "running", "d": "stopped", "e": "failed",
		"f": "terminating", "g": "terminating", "h": "terminating",
	}
	status := newStatus(&groups.Group{Key: key("workers"), Size: 3, RemoveFirst: []string{"z", "c"}}, instances, nil)
	got := map[string]string{}
	var ids []string
	for _, i := range status.Instances.Instances {
		got[i.Id] = i.Status
		ids = append(ids, i.Id)
		if at := epoch.Add(time.Duration(i.Id[0]) * time.Second); !i.CreatedAt.AsTime().Equal(at) || (i.ProviderId == "") != (i.Id == "a") {
			t.Errorf("listed is %v", i)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || !slices.IsSorted(ids) {
		t.Errorf("%q are listed (-want +got):\n%s", ids, diff)
	}
	// The order is kept, and ids without an instance stay.
	if !slices.Equal(status.RemoveFirst, []string{"z", "c"}) {
		t.Errorf("remove_first is %q", status.RemoveFirst)
	}
	// An empty message reports that there are no instances; a missing one would mean
	// that they are not known.
	if status := newStatus(&groups.Group{}, nil, nil); status.Instances == nil || status.Node != nil {
		t.Errorf("the status of an empty group is %v", status)
	}
}

// TestEveryReportedChangeOfInstanceIsSent: other changes are not part of the status, and are
// not sent.
func TestEveryReportedChangeOfInstanceIsSent(t *testing.T) {
	c, s := newStatusCache()
	s.resize(c, "workers", 1)
	w := c.watch("default")
	takeEvents(w)
	i := shown("a", instance.Pending)
	i.ProviderID = ""
	for _, step := range []struct {
		name   string
		change func()
		sent   bool
	}{
		{"it is being created", func() {}, true},
		{"it runs, but no client could find its Node", func() { i.State = instance.Running }, false},
		{"its provider id is known", func() { i.ProviderID = "id-a" }, true},
		{"it drains", func() { i.Drain = &instance.Drain{Reason: instance.ReasonScaleDown} }, false},
		{"it is being deleted", func() { i.DeleteReason = instance.ReasonScaleDown }, true},
		{"it is terminating", func() { i.State = instance.Terminating }, false},
	} {
		step.change()
		s.instances[key("workers")] = []instance.Instance{i}
		c.Refresh(key("workers"))
		if events := takeEvents(w); (len(events) == 1) != step.sent {
			t.Errorf("%s: sent %q", step.name, events)
		}
	}
	s.instances[key("workers")] = nil
	c.Refresh(key("workers"))
	expectEvents(t, takeEvents(w), "TYPE_UPSERT workers 1")

	// A change of removeFirst alone is sent too.
	s.groups[key("workers")] = &groups.Group{Key: key("workers"), Size: 1, RemoveFirst: []string{"a"}}
	c.Refresh(key("workers"))
	expectEvents(t, takeEvents(w), "TYPE_UPSERT workers 1")
}

func TestNodeShape(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"kubernetes.io/arch": "arm64", "empty": ""}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule}, {Key: "b", Effect: corev1.TaintEffectNoExecute},
		}},
		Status: corev1.NodeStatus{
			Capacity: corev1.ResourceList{"cpu": resource.MustParse("1500m"), "memory": resource.MustParse("8Gi")},
			NodeInfo: corev1.NodeSystemInfo{Architecture: "arm64", OperatingSystem: "linux"},
		},
	}
	want := &nstancev1.NodeShape{
		Architecture: "arm64", OperatingSystem: "linux",
		Capacity: map[string]string{"cpu": "1500m", "memory": "8Gi"},
		Labels:   map[string]string{"kubernetes.io/arch": "arm64", "empty": ""},
		Taints:   []*nstancev1.NodeTaint{{Key: "gpu", Value: "yes", Effect: "NoSchedule"}, {Key: "b", Effect: "NoExecute"}},
	}
	// A group of size 0 has it too.
	c, s := newStatusCache()
	s.node = node
	s.resize(c, "workers", 0)
	got := c.list()[0].Node
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// So does a deleted group for as long as it is listed.
	s.instances[key("workers")] = []instance.Instance{shown("a", instance.Running)}
	s.remove(c, "workers")
	if status := c.list()[0]; !status.Deleting || !proto.Equal(status.Node, want) {
		t.Errorf("the deleted group is %v", status)
	}
}

func TestDeletedGroupIsListedUntilLastInstanceIsDeleted(t *testing.T) {
	c, s := newStatusCache()
	workers := key("workers")
	group := &groups.Group{Key: workers, Size: 2, RemoveFirst: []string{"a"}, ETag: "tag"}
	settingstest.Fill(&group.Settings)
	group.Declared = &group.Settings
	group.Revision = &groups.Revision{UID: "u", Generation: 1}
	s.groups[workers] = group
	first, second := shown("a", instance.Running), shown("b", instance.Running)
	s.instances[workers] = []instance.Instance{first, second}
	c.Refresh(workers)
	w := c.watch("default")
	expectEvents(t, takeEvents(w), "TYPE_UPSERT workers 2")
	expect := func(want *nstancev1.GroupStatus) {
		t.Helper()
		c.Refresh(workers)
		want = proto.CloneOf(want)
		want.Instances, want.Revision = &nstancev1.ManagedInstances{}, &nstancev1.Revision{}
		for _, i := range managed(s.instances[workers]) {
			want.Instances.Instances = append(want.Instances.Instances, listed(i))
		}
		event := w.take()
		if event.GetType() != nstancev1.GroupEvent_TYPE_UPSERT || !proto.Equal(event.GetGroup(), want) {
			t.Errorf("got event %v, want one of %v", event, want)
		}
		if all := c.list(); len(all) != 1 || !proto.Equal(all[0], want) {
			t.Errorf("listed are %v, want %v", all, want)
		}
		c.Refresh(workers)
		expectEvents(t, takeEvents(w))
	}

	delete(s.groups, workers)
	deleting := &nstancev1.GroupStatus{Key: "workers", Tenant: "default", Etag: "tag", Deleting: true}
	setSettings(deleting, group)
	deleting.Declared = &nstancev1.GroupSettings{}
	deleting.ActualSize, deleting.ProviderIds = 2, []string{"id-a", "id-b"}
	expect(deleting)
	first.State = instance.Terminating
	s.instances[workers] = []instance.Instance{first, second}
	deleting.ActualSize, deleting.ProviderIds = 1, []string{"id-b"}
	expect(deleting)
	// No instance runs, but one instance is still terminating.
	s.instances[workers] = []instance.Instance{first}
	deleting.ActualSize, deleting.ProviderIds = 0, nil
	expect(deleting)

	// A group that was created again is like any other.
	s.groups[workers] = &groups.Group{Key: workers, Settings: groups.Settings{Template: "other"}, Size: 1}
	expect(&nstancev1.GroupStatus{Key: "workers", Tenant: "default", Template: "other", Size: 1, KnownSettings: 1025, Declared: &nstancev1.GroupSettings{}})
	delete(s.groups, workers)
	expect(&nstancev1.GroupStatus{Key: "workers", Tenant: "default", Template: "other", Deleting: true, KnownSettings: 1025, Declared: &nstancev1.GroupSettings{}})

	// An on-demand instance does not count, and outlives the group.
	onDemand := shown("o", instance.Running)
	onDemand.OnDemand = true
	s.instances[workers] = []instance.Instance{onDemand}
	c.Refresh(workers)
	expectEvents(t, takeEvents(w), "TYPE_DELETE workers 0")
	if listed := c.list(); len(listed) != 0 {
		t.Errorf("listed are %v", listed)
	}

	// After a restart only the instances are known.
	s.instances[workers] = []instance.Instance{second}
	expect(&nstancev1.GroupStatus{Key: "workers", Tenant: "default", Deleting: true, ActualSize: 1, ProviderIds: []string{"id-b"}, Declared: &nstancev1.GroupSettings{}})
	// Without instances the group is not listed.
	s.instances[workers] = nil
	c.Refresh(workers)
	expectEvents(t, takeEvents(w), "TYPE_DELETE workers 0")
	c.Refresh(workers)
	expectEvents(t, takeEvents(w))
}

func TestGroupsAreRefreshedAtOnce(t *testing.T) {
	c, s := newStatusCache()
	s.resize(c, "a", 1)
	s.resize(c, "b", 1)
	w := c.watch("default")
	takeEvents(w)
	s.groups[key("a")] = &groups.Group{Key: key("a"), Size: 2}
	delete(s.groups, key("b"))
	s.groups[key("c")] = &groups.Group{Key: key("c"), Size: 2}
	c.Refresh(key("a"), key("b"), key("c"), key("d"))
	expectEvents(t, takeEvents(w), "TYPE_UPSERT a 2", "TYPE_DELETE b 0", "TYPE_UPSERT c 2")
}

// keysOf returns the keys of groups.
func keysOf(groups []*nstancev1.GroupStatus) []string {
	var keys []string
	for _, group := range groups {
		keys = append(keys, group.Key)
	}
	return keys
}

// A client that knows the groups of an earlier list gets what has changed since, and all groups if that
// is not certain.
func TestListSinceAVersion(t *testing.T) {
	c, s := newStatusCache()
	for _, group := range []string{"a", "b", "c", "d"} {
		s.resize(c, group, 1)
	}
	all := c.listSince("default", "")
	assert.Equal(t, []string{"a", "b", "c", "d"}, keysOf(all.Groups))
	assert.False(t, all.Changes)

	quiet := c.listSince("default", all.Version)
	assert.True(t, proto.Equal(&nstancev1.ListGroupsResponse{Version: all.Version, Changes: true}, quiet), "%v", quiet)

	s.resize(c, "b", 2)
	c.Refresh(key("a")) // nothing has changed
	s.remove(c, "c")
	s.remove(c, "d")
	s.resize(c, "d", 3)
	s.resize(c, "e", 1)
	changed := c.listSince("default", all.Version)
	assert.True(t, changed.Changes)
	assert.Equal(t, []string{"b", "d", "e"}, keysOf(changed.Groups))
	assert.Equal(t, []string{"c"}, changed.Removed)
	assert.Empty(t, c.listSince("default", changed.Version).Groups)

	// Another tenant sees neither groups nor that anything has changed.
	quiet = c.listSince("other", "")
	assert.Equal(t, c.versions.term+".0", quiet.Version)
	assert.Empty(t, quiet.Groups)
	assert.Empty(t, quiet.Removed)

	other, o := newStatusCache()
	for range 20 {
		o.resize(other, "a", int32(len(o.groups)))
	}
	for what, version := range map[string]string{
		"of another leader": other.listSince("default", "").Version,
		"of the future":     c.versions.term + ".1000",
		"without a number":  c.versions.term + ".",
		"of another form":   "1",
	} {
		list := c.listSince("default", version)
		assert.False(t, list.Changes, what)
		assert.Equal(t, []string{"a", "b", "d", "e"}, keysOf(list.Groups), what)
		assert.Empty(t, list.Removed, what)
	}

	// More groups are removed than are remembered.
	before := c.listSince("default", "").Version
	for n := range maxRemoved + 10 {
		s.resize(c, fmt.Sprint("short-", n), 1)
		s.remove(c, fmt.Sprint("short-", n))
	}
	assert.LessOrEqual(t, len(c.versions.of("default").removed), maxRemoved)
	list := c.listSince("default", before)
	assert.False(t, list.Changes, "a removal is forgotten")
	assert.Equal(t, []string{"a", "b", "d", "e"}, keysOf(list.Groups))
}

// countingInstances counts how often the instances of a group are read.
type countingInstances struct {
	*shard
	mu    sync.Mutex
	lists int
}

func (c *countingInstances) List(key instance.GroupKey) []instance.Instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lists++
	return c.shard.List(key)
}

// add adds a running instance to a group.
func (c *countingInstances) add(key instance.GroupKey, id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.instances[key] = append(c.instances[key], shown(id, instance.Running))
}

func (c *countingInstances) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lists
}

// The instances of a large group start one after the other within ten seconds. Its status names all
// of them, and is not computed and sent for each. A single change is sent at once.
func TestInstancesThatStartOneByOneShareStatuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const count = 5000
		s := &shard{groups: map[instance.GroupKey]*groups.Group{}, instances: map[instance.GroupKey][]instance.Instance{}}
		counted := &countingInstances{shard: s}
		c := NewStatusCache(StatusOptions{Groups: s, Instances: counted, Nodes: s})
		s.resize(c, "large", count)
		s.resize(c, "other", 1)
		w := c.watch("default")
		takeEvents(w)
		time.Sleep(time.Second)
		start := func(n int) {
			counted.add(key("large"), fmt.Sprintf("i-%05d", n))
			c.RefreshSoon(key("large"))
		}
		running := func(event *nstancev1.GroupEvent) string {
			return fmt.Sprint(event.Group.Key, " ", event.Group.ActualSize)
		}
		start(0)
		expectEvents(t, taken(w, running), "large 1")

		before := counted.count()
		for n := range count - 1 {
			time.Sleep(2 * time.Millisecond)
			start(n + 1)
			if n%500 != 100 {
				continue
			}
			lists := counted.count()
			// A list, a new watch and the reply to a request have what was true when they began.
			switch n / 500 % 3 {
			case 0:
				assert.Equal(t, int32(n+2), c.list()[0].ActualSize, "listed")
			case 1:
				second := c.watch("default")
				assert.Equal(t, fmt.Sprint("large ", n+2), taken(second, running)[0], "at the begin of a watch")
				c.watchers.unwatch(second)
			default:
				assert.Equal(t, int32(n+2), c.get(s.groups[key("large")]).ActualSize, "replied")
			}
			assert.LessOrEqual(t, counted.count(), lists+1)
		}
		assert.LessOrEqual(t, counted.count()-before, 60, "computed statuses in 10 s")
		time.Sleep(time.Second)
		synctest.Wait()
		events := taken(w, running)
		assert.Equal(t, fmt.Sprint("large ", count), events[len(events)-1], "the last event")

		// A change of the group itself is sent at once, with what is pending.
		start(count)
		start(count + 1)
		s.resize(c, "large", count+2)
		expectEvents(t, taken(w, running), fmt.Sprint("large ", count+2))
		assert.Empty(t, c.dirty)
		start(count + 2)
		start(count + 3)
		c.Close()
		lists := counted.count()
		time.Sleep(time.Minute)
		assert.Equal(t, lists, counted.count(), "after the end of the term")
	})
}

// reversed orders instances by their ids, the last one first.
type reversed struct{}

func (reversed) Of(_ *groups.Group, instances []instance.Instance) ([]instance.NextDeletion, instance.RotationProgress) {
	var order []instance.NextDeletion
	for n := range instances {
		order = append(order, instance.NextDeletion{ID: instances[n].ID, Reason: "expired"})
	}
	slices.Reverse(order)
	order[0].Outdated = "rotated"
	return order, instance.RotationProgress{Outdated: map[string]int{"rotated": 1}, UpToDate: 2, Above: 3, Below: 4, Target: "t", ForcedAt: time.Unix(100, 0)}
}

// Operators get the beginning of the order of the instances that run, and no order of a group that is
// deleted, or that another size may be stored of.
func TestDeletionOrder(t *testing.T) {
	s := &shard{groups: map[instance.GroupKey]*groups.Group{}, instances: map[instance.GroupKey][]instance.Instance{}}
	c := NewStatusCache(StatusOptions{Groups: s, Instances: s, Nodes: s, DeletionOrders: reversed{}})
	key := instance.GroupKey{Tenant: "default", Group: "workers"}
	group := &groups.Group{Key: key, Size: 3}
	s.groups[key] = group
	for n := range 3 {
		s.instances[key] = append(s.instances[key], instance.Instance{
			Record: instance.Record{ID: fmt.Sprintf("i%03d", n), ProviderID: fmt.Sprint("vm-", n)}, State: instance.Running,
		})
	}
	s.instances[key][1].State = instance.Pending
	order := func() (ids []string) {
		c.Refresh(key)
		for _, next := range c.list()[0].GetDeletionOrder() {
			assert.Equal(t, "expired", next.GetReason())
			ids = append(ids, next.GetInstanceId())
		}
		return ids
	}
	assert.Equal(t, []string{"i002", "i000"}, order())
	status := c.list()[0]
	assert.EqualValues(t, 1, status.GetRotationProgress().GetOutdated()["rotated"])
	assert.EqualValues(t, 2, status.GetRotationProgress().GetUpToDate())
	assert.EqualValues(t, 3, status.GetRotationProgress().GetAbove())
	assert.EqualValues(t, 4, status.GetRotationProgress().GetBelow())
	assert.Equal(t, "t", status.GetRotationProgress().GetTarget())
	assert.EqualValues(t, 100, status.GetRotationProgress().GetForcedAt().GetSeconds())
	for _, listed := range status.GetInstances().GetInstances() {
		assert.Equal(t, listed.GetId() == "i002", listed.GetOutdated() == "rotated", "%s is outdated: %q", listed.GetId(), listed.GetOutdated())
	}
	s.hides = true
	assert.Empty(t, order())
	s.hides = false
	for n := 3; n < 2*maxDeletionOrder; n++ {
		s.instances[key] = append(s.instances[key], instance.Instance{
			Record: instance.Record{ID: fmt.Sprintf("i%03d", n), ProviderID: fmt.Sprint("vm-", n)}, State: instance.Running,
		})
	}
	long := order()
	assert.Len(t, long, maxDeletionOrder)
	assert.Equal(t, "i199", long[0])
	delete(s.groups, key)
	assert.Empty(t, order())
}
