// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/testing/settingstest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

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
		if all := c.list("default"); len(all) != 1 || !proto.Equal(all[0], want) {
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
	// None runs, but one is still terminating.
	s.instances[workers] = []instance.Instance{first}
	deleting.ActualSize, deleting.ProviderIds = 0, nil
	expect(deleting)

	// A group that was created again is like any other.
	s.groups[workers] = &groups.Group{Key: workers, Settings: groups.Settings{Template: "other"}, Size: 1}
	expect(&nstancev1.GroupStatus{Key: "workers", Tenant: "default", Template: "other", Size: 1, Declared: &nstancev1.GroupSettings{}})
	delete(s.groups, workers)
	expect(&nstancev1.GroupStatus{Key: "workers", Tenant: "default", Template: "other", Deleting: true, Declared: &nstancev1.GroupSettings{}})

	// An on-demand instance does not count, and outlives the group.
	onDemand := shown("o", instance.Running)
	onDemand.OnDemand = true
	s.instances[workers] = []instance.Instance{onDemand}
	c.Refresh(workers)
	expectEvents(t, takeEvents(w), "TYPE_DELETE workers 0")
	if listed := c.list("default"); len(listed) != 0 {
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
