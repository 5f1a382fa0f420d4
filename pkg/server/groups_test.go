// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

func TestARestartChangesNothing(t *testing.T) {
	first := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 2}}}`})
	operator := first.Operator("default")
	watch := watchGroups(t, operator)
	watch.untilSize("main", 2)
	upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 3, Vars: map[string]string{"a": "b"}})
	watch.untilSize("workers", 3)
	upsert(t, operator, "main", &nstancev1.GroupConfig{Size: 1})
	watch.untilSize("main", 1)
	before := list(t, operator)
	first.Stop()

	second := servertest.Start(t, servertest.Options{
		Authority: first.Authority, DataDir: first.DataDir, Kubernetes: first.Kubernetes, Addr: first.Addr,
		Groups: `{"default": {"main": {"template": "worker", "size": 2}}}`,
	})
	// The same client reconnects. Its first response is complete.
	after := list(t, operator)
	if len(before) != 2 || !slices.EqualFunc(before, after, func(a, b *nstancev1.GroupStatus) bool { return proto.Equal(a, b) }) {
		t.Errorf("before %v\nafter  %v", before, after)
	}
	upsert(t, second.Operator("default"), "workers", &nstancev1.GroupConfig{Size: 4})
	grown := watchGroups(t, second.Operator("default")).untilSize("workers", 4)
	for _, id := range before[1].ProviderIds {
		if !slices.Contains(grown.ProviderIds, id) {
			t.Errorf("instance %s of %v was replaced: %v", id, before[1], grown)
		}
	}
	if got := nodes(t, second); got != 5 {
		t.Errorf("there are %d Nodes, want 5", got)
	}
}

func TestDeletedGroups(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 1}}}`})
	operator := server.Operator("default")
	watch := watchGroups(t, operator)
	upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 2})
	watch.untilSize("workers", 2)
	upsert(t, operator, "main", &nstancev1.GroupConfig{Size: 3})
	watch.untilSize("main", 3)

	// A static group returns to what is configured.
	_, err := operator.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Key: "main"})
	require.NoError(t, err)
	watch.untilSize("main", 1)

	// A dynamic group is deleted with its instances. A second request succeeds too.
	kept, err := server.Kubernetes.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{LabelSelector: "nstance.dev/group=workers"})
	require.NoError(t, err)
	defer kept.Stop()
	for range 2 {
		_, err = operator.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Key: "workers"})
		require.NoError(t, err)
	}
	deleted := watch.until(func(e *nstancev1.GroupEvent) bool { return e.Type == nstancev1.GroupEvent_TYPE_DELETE })
	if want := (&nstancev1.GroupStatus{Key: "workers", Tenant: "default"}); !proto.Equal(deleted.Group, want) {
		t.Errorf("the deletion of %v was reported, want %v", deleted.Group, want)
	}
	if groups := list(t, operator); len(groups) != 1 || groups[0].Key != "main" {
		t.Errorf("there are groups %v, want main alone", groups)
	}
	within(t, eventTimeout, "the deletion of the instances", func() {
		for left := 2; left > 0; {
			if event := <-kept.ResultChan(); event.Type == "DELETED" {
				left--
			}
		}
	})
	if got := nodes(t, server); got != 1 {
		t.Errorf("there are %d Nodes, want 1", got)
	}
}

// TestAConfigurationThatDropsGroupsWhileTheServerIsDown: a group that an operator has
// changed stays as it was. Of the others only the instances are known, which stay until an
// operator decides.
func TestAConfigurationThatDropsGroupsWhileTheServerIsDown(t *testing.T) {
	first := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 2}, "other": {"template": "worker"}}}`})
	upsert(t, first.Operator("default"), "main", &nstancev1.GroupConfig{Size: 3})
	before := watchGroups(t, first.Operator("default")).untilSize("main", 3)
	watchGroups(t, first.Operator("default")).untilSize("other", 1)
	first.Stop()

	second := servertest.Start(t, servertest.Options{Authority: first.Authority, DataDir: first.DataDir, Kubernetes: first.Kubernetes})
	groups := untilListed(t, second.Operator("default"), "main", "other")
	_, err := second.Operator("default").DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Key: "other"})
	require.NoError(t, err)
	untilListed(t, second.Operator("default"), "main")
	if groups[0].IsStatic || groups[0].Size != 3 || !slices.Equal(groups[0].ProviderIds, before.ProviderIds) {
		t.Errorf("there are groups %v, want main alone, dynamic and otherwise as before: %v", groups, before)
	}
	if got := nodes(t, second); got != 3 {
		t.Errorf("there are %d Nodes, want 3", got)
	}
}

func TestALostInstanceIsReplaced(t *testing.T) {
	server := servertest.Start(t, servertest.Options{Groups: `{"default": {"main": {"template": "worker", "size": 3}}}`})
	watch := watchGroups(t, server.Operator("default"))
	before := watch.untilSize("main", 3).ProviderIds
	lost := before[1]
	name := lost[len("kwok:///us-west-2a/"):]
	require.NoError(t, server.Kubernetes.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}))
	after := watch.until(func(e *nstancev1.GroupEvent) bool {
		return e.Group.ActualSize == 3 && !slices.Contains(e.Group.ProviderIds, lost)
	}).Group.ProviderIds
	if !slices.Contains(after, before[0]) || !slices.Contains(after, before[2]) || !slices.IsSorted(after) {
		t.Errorf("from %q to %q, want one replaced and all sorted", before, after)
	}
}
