// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package api

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func TestADeletedGroupShowsUntilItsLastInstanceIsGone(t *testing.T) {
	b, s := newBoard()
	workers := key("workers")
	s.groups[workers] = &groups.Group{Key: workers, Template: "worker", Size: 2, InstanceType: "m7i.large", ETag: "tag"}
	first, second := shown("a", instance.Running), shown("b", instance.Running)
	s.running[workers] = []instance.Instance{first, second}
	b.Refresh(workers)
	w := b.watch("default")
	expectEvents(t, w, "TYPE_UPSERT workers 2")
	expect := func(want *nstancev1.GroupStatus) {
		t.Helper()
		b.Refresh(workers)
		want = proto.CloneOf(want)
		want.Instances = &nstancev1.ManagedInstances{}
		for _, i := range managed(s.running[workers]) {
			want.Instances.Instances = append(want.Instances.Instances, listed(i))
		}
		event := w.take()
		if event.GetType() != nstancev1.GroupEvent_TYPE_UPSERT || !proto.Equal(event.GetGroup(), want) {
			t.Errorf("got event %v, want one of %v", event, want)
		}
		if all := b.list("default"); len(all) != 1 || !proto.Equal(all[0], want) {
			t.Errorf("listed are %v, want %v", all, want)
		}
		b.Refresh(workers)
		expectEvents(t, w)
	}

	delete(s.groups, workers)
	deleting := &nstancev1.GroupStatus{Key: "workers", Tenant: "default", Template: "worker", InstanceType: "m7i.large", Etag: "tag", Deleting: true}
	deleting.ActualSize, deleting.ProviderIds = 2, []string{"id-a", "id-b"}
	expect(deleting)
	first.State = instance.Terminating
	s.running[workers] = []instance.Instance{first, second}
	deleting.ActualSize, deleting.ProviderIds = 1, []string{"id-b"}
	expect(deleting)
	// None runs, but one is on its way out yet.
	s.running[workers] = []instance.Instance{first}
	deleting.ActualSize, deleting.ProviderIds = 0, nil
	expect(deleting)

	// Made anew, it is as any other.
	s.groups[workers] = &groups.Group{Key: workers, Template: "other", Size: 1}
	expect(&nstancev1.GroupStatus{Key: "workers", Tenant: "default", Template: "other", Size: 1})
	delete(s.groups, workers)
	expect(&nstancev1.GroupStatus{Key: "workers", Tenant: "default", Template: "other", Deleting: true})

	// One that was ordered by itself is not the group's, and outlives it.
	onDemand := shown("o", instance.Running)
	onDemand.OnDemand = true
	s.running[workers] = []instance.Instance{onDemand}
	b.Refresh(workers)
	expectEvents(t, w, "TYPE_DELETE workers 0")
	if listed := b.list("default"); len(listed) != 0 {
		t.Errorf("listed are %v", listed)
	}

	// After a restart nothing is known but the instances.
	s.running[workers] = []instance.Instance{second}
	expect(&nstancev1.GroupStatus{Key: "workers", Tenant: "default", Deleting: true, ActualSize: 1, ProviderIds: []string{"id-b"}})
	// Without instances there is nothing to show.
	s.running[workers] = nil
	b.Refresh(workers)
	expectEvents(t, w, "TYPE_DELETE workers 0")
	b.Refresh(workers)
	expectEvents(t, w)
}

func TestGroupsAreRefreshedAtOnce(t *testing.T) {
	b, s := newBoard()
	s.resize(b, "a", 1)
	s.resize(b, "b", 1)
	w := b.watch("default")
	drain(w)
	s.groups[key("a")] = &groups.Group{Key: key("a"), Size: 2}
	delete(s.groups, key("b"))
	s.groups[key("c")] = &groups.Group{Key: key("c"), Size: 2}
	b.Refresh(key("a"), key("b"), key("c"), key("d"))
	expectEvents(t, w, "TYPE_UPSERT a 2", "TYPE_DELETE b 0", "TYPE_UPSERT c 2")
}
