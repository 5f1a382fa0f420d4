// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// blockedDeletions returns a clientset whose Nodes are deleted only when allowed is
// true.
func blockedDeletions() (clientset *fake.Clientset, allowed *atomic.Bool) {
	clientset, allowed = kwoktest.NewClientset(), &atomic.Bool{}
	clientset.PrependReactor("delete", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		if allowed.Load() {
			return false, nil, nil
		}
		return true, nil, apierrors.NewServiceUnavailable("try later")
	})
	return clientset, allowed
}

func deleteGroup(t *testing.T, operator nstancev1.OperatorServiceClient, group string) {
	t.Helper()
	_, err := operator.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Key: group})
	require.NoError(t, err)
}

// untilDeleted waits until the stream reports that a group was deleted. Until then
// it must report that the group is being deleted, with fewer and fewer instances.
func (s stream) untilDeleted(group string, ids []string) {
	s.t.Helper()
	s.until(func(e *nstancev1.GroupEvent) bool {
		s.t.Helper()
		if e.Group.Key != group {
			return false
		}
		if e.Type == nstancev1.GroupEvent_TYPE_DELETE {
			return true
		}
		if !e.Group.Deleting || e.Group.Size != 0 || len(e.Group.ProviderIds) > len(ids) {
			s.t.Errorf("before the deletion there is event %v", e)
		}
		ids = e.Group.ProviderIds
		return false
	})
}

func TestADeletedGroupIsListedUntilItsInstancesAreDeleted(t *testing.T) {
	kubernetes, allowed := blockedDeletions()
	server := servertest.Start(t, servertest.Options{Kubernetes: kubernetes})
	operator := server.Operator("default")
	watch := watchGroups(t, operator)
	upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 3})
	before := watch.untilSize("workers", 3)
	upsert(t, operator, "empty", &nstancev1.GroupConfig{Template: "worker"})
	deleteGroup(t, operator, "empty")
	if got := list(t, operator); len(got) != 1 {
		t.Errorf("there are groups %v, want no empty one", got)
	}

	deleteGroup(t, operator, "workers")
	want := withoutInstances(before)
	want.Size, want.Deleting = 0, true
	if got := list(t, operator); len(got) != 1 || !proto.Equal(withoutInstances(got[0]), want) || !slices.Equal(instanceIDs(got[0]), instanceIDs(before)) {
		t.Errorf("there are groups %v, want %v", got, want)
	}
	deleteGroup(t, operator, "workers")
	allowed.Store(true)
	watch.untilDeleted("workers", before.ProviderIds)
	if got := list(t, operator); len(got) != 0 {
		t.Errorf("there are groups %v", got)
	}
	if got := nodes(t, server); got != 0 {
		t.Errorf("there are %d Nodes", got)
	}
}

func TestARestartWhileAGroupIsDeleted(t *testing.T) {
	kubernetes, allowed := blockedDeletions()
	first := servertest.Start(t, servertest.Options{Kubernetes: kubernetes})
	upsert(t, first.Operator("default"), "workers", &nstancev1.GroupConfig{Template: "worker", Size: 2})
	before := watchGroups(t, first.Operator("default")).untilSize("workers", 2)
	deleteGroup(t, first.Operator("default"), "workers")
	first.Stop()

	second := servertest.Start(t, servertest.Options{Authority: first.Authority, DataDir: first.DataDir, Kubernetes: kubernetes})
	operator := second.Operator("default")
	want := &nstancev1.GroupStatus{
		Key: "workers", Tenant: "default", Deleting: true, ActualSize: 2, ProviderIds: before.ProviderIds, Declared: &nstancev1.GroupSettings{},
		Revision: &nstancev1.Revision{},
	}
	if got := list(t, operator); len(got) != 1 || !proto.Equal(withoutInstances(got[0]), want) || !slices.Equal(instanceIDs(got[0]), instanceIDs(before)) {
		t.Errorf("there are groups %v, want %v", got, want)
	}
	watch := watchGroups(t, operator)
	allowed.Store(true)
	watch.untilDeleted("workers", before.ProviderIds)
}

// TestADeletedGroupIsCreatedAgain before its instances are deleted: they are deleted
// all the same, and it gets others.
func TestADeletedGroupIsCreatedAgain(t *testing.T) {
	kubernetes, allowed := blockedDeletions()
	server := servertest.Start(t, servertest.Options{Kubernetes: kubernetes})
	operator := server.Operator("default")
	watch, failures := watchGroups(t, operator), watchErrors(t, operator)
	upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 2})
	before := watch.untilSize("workers", 2)
	deleteGroup(t, operator, "workers")
	// Now their deletion is requested.
	failures.next()
	_, err := operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Key: "workers", Config: &nstancev1.GroupConfig{Size: 1}})
	if err == nil {
		t.Error("was created without a template")
	}
	if got := upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 1}); got.Deleting || got.Size != 1 {
		t.Errorf("was answered %v", got)
	}
	allowed.Store(true)
	watch.until(func(e *nstancev1.GroupEvent) bool {
		return !e.Group.Deleting && e.Group.ActualSize == 1 && !slices.Contains(before.ProviderIds, e.Group.ProviderIds[0])
	})
	if got := list(t, operator); len(got) != 1 || got[0].Deleting {
		t.Errorf("there are groups %v", got)
	}
}
