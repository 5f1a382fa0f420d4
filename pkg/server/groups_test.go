// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider/kwok"
	"nstance.dev/operator/pkg/server/provider/kwok/kwoktest"
	"nstance.dev/operator/pkg/server/puidv7"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/server/storage"
	"nstance.dev/operator/pkg/testing/runtest"
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
	// A deleted instance counts in the progress of a rotation until its record is removed.
	var before []*nstancev1.GroupStatus
	runtest.Eventually(t, "no group has more instances than its size", func() bool {
		before = list(t, operator)
		return !slices.ContainsFunc(before, func(g *nstancev1.GroupStatus) bool { return g.GetRotationProgress().GetAbove() > 0 })
	})
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

	// A static group returns to its configured settings.
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

// TestAConfigurationThatDropsGroupsWhileTheServerIsDown: a group that an operator has changed
// stays as it was. Only the instances of other groups are known, which stay until an operator
// decides.
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
	want.Size, want.Deleting, want.DeletionOrder, want.RotationProgress = 0, true, nil, nil
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

// TestADeletedGroupIsCreatedAgain before its instances are deleted: they are deleted all the
// same, and the group gets other instances.
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

// TestLostGroups starts a server whose storage has lost the object with the groups. It does
// not serve, reports the reason, and deletes nothing.
func TestLostGroups(t *testing.T) {
	for name, repair := range map[string]func(t *testing.T, s *servertest.Server, object []byte){
		"the object is restored": func(t *testing.T, s *servertest.Server, object []byte) {
			require.NoError(t, os.WriteFile(s.GroupsPath(), object, 0o600))
		},
		"an administrator confirms the loss": func(t *testing.T, s *servertest.Server, _ []byte) {
			require.NoError(t, groups.Reset(t.Context(), s.Storage, "us-west-2a"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := servertest.Start(t, servertest.Options{Groups: `{"default": {"static": {"template": "worker", "size": 1}}}`})
			upsert(t, s.Operator("default"), "workers", &nstancev1.GroupConfig{Template: "worker", Size: 2})
			want := untilNodes(t, s, 3)
			s.Stop()
			object := s.ReadFile(storage.GroupsKey("us-west-2a"))
			require.NoError(t, os.Remove(s.GroupsPath()))
			loseCache(t, s)

			o := sameState(s)
			o.Groups = `{"default": {"static": {"template": "worker", "size": 1}}}`
			s = servertest.Prepare(t, o)
			s.Launch()
			s.UntilListening()
			var code int
			var body string
			eventually(t, "there is a reason", func() bool {
				code, body = s.Get("/health")
				return len(body) > len("not ready\n")
			})
			assert.Equal(t, http.StatusServiceUnavailable, code)
			for _, text := range []string{"groups/us-west-2a.jsonc", "default/workers", "nstance-admin shard reset-groups --shard us-west-2a"} {
				assert.Contains(t, body, text)
			}
			assert.NotContains(t, body, "static")
			operator := s.Operator("default")
			_, err := operator.ListGroups(t.Context(), &emptypb.Empty{})
			wantCode(t, "without the groups", err, codes.Unavailable)
			assert.ErrorContains(t, err, "groups/us-west-2a.jsonc")
			assert.True(t, shard.IsNotServing(err))

			repair(t, s, object)
			s.ReadConfig()
			s.UntilHealthy()
			status := statusOf(t, operator, "workers")
			assert.EqualValues(t, 2, status.Size)
			assert.False(t, status.Deleting)
			upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 2})
			watchGroups(t, operator).untilSize("workers", 2)
			assert.Equal(t, want, nodeNames(t, s))
		})
	}
}

// TestStaticGroupsNeedNoObject starts a server whose storage has never had the object.
func TestStaticGroupsNeedNoObject(t *testing.T) {
	o := servertest.Options{Groups: `{"default": {"static": {"template": "worker", "size": 2}}}`}
	s := servertest.Start(t, o)
	want := untilNodes(t, s, 2)
	s.Stop()
	assert.NoFileExists(t, s.GroupsPath())
	loseCache(t, s)
	o.DataDir, o.Kubernetes = s.DataDir, s.Kubernetes
	s = servertest.Start(t, o)
	watchGroups(t, s.Operator("default")).untilSize("static", 2)
	assert.Equal(t, want, nodeNames(t, s))
}

// TestFirstListIsComplete has the provider list many instances that have no record. The
// first list that an operator gets has all of them.
func TestFirstListIsComplete(t *testing.T) {
	const count = 200
	client := kwoktest.NewClientset()
	for range count {
		id, err := puidv7.New("knd")
		require.NoError(t, err)
		_, err = client.CoreV1().Nodes().Create(t.Context(), strayNode(id.String(), instance.GroupKey{Tenant: "default", Group: "static"}), metav1.CreateOptions{})
		require.NoError(t, err)
	}
	o := servertest.Options{Kubernetes: client, Groups: fmt.Sprintf(`{"default": {"static": {"template": "worker", "size": %d}}}`, count)}
	s := servertest.Prepare(t, o)
	s.Launch()
	s.UntilListening()
	operator := s.Operator("default")
	var listed *nstancev1.ListGroupsResponse
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, eventTimeout, true, func(ctx context.Context) (bool, error) {
		var err error
		listed, err = operator.ListGroups(ctx, &emptypb.Empty{})
		return err == nil, nil
	})
	require.NoError(t, err)
	require.Len(t, listed.Groups, 1)
	assert.Len(t, instanceIDs(listed.Groups[0]), count)
	assert.Len(t, listed.Groups[0].ProviderIds, count)
}

// strayNode returns the Node of an instance whose record is lost.
func strayNode(id string, group instance.GroupKey) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: id, Labels: map[string]string{
			kwok.LabelManaged: "true", kwok.LabelClusterID: servertest.ClusterID, kwok.LabelShard: "us-west-2a",
			kwok.LabelTenant: group.Tenant, kwok.LabelGroup: group.Group, kwok.LabelInstanceID: id,
		}},
		Spec: corev1.NodeSpec{ProviderID: "kwok:///us-west-2a/" + id},
	}
}

func upsertRequest(uid string, generation int64, size int32) *nstancev1.UpsertGroupRequest {
	return &nstancev1.UpsertGroupRequest{
		Key: "workers", Config: &nstancev1.GroupConfig{Template: "worker", Size: size},
		Revision: &nstancev1.Revision{Uid: uid, Generation: generation},
	}
}

func deleteRequest(uid string, generation int64) *nstancev1.DeleteGroupRequest {
	return &nstancev1.DeleteGroupRequest{Key: "workers", Revision: &nstancev1.Revision{Uid: uid, Generation: generation}}
}

// wantStale checks the code and the detail of a refused request.
func wantStale(t *testing.T, err error, metadata map[string]string) {
	t.Helper()
	wantCode(t, "a stale request", err, codes.FailedPrecondition)
	details := status.Convert(err).Details()
	require.Len(t, details, 1)
	want := &errdetails.ErrorInfo{Domain: "nstance.dev", Reason: "STALE_REVISION", Metadata: metadata}
	if got, _ := details[0].(*errdetails.ErrorInfo); !proto.Equal(got, want) {
		t.Errorf("the detail is %v, want %v", got, want)
	}
}

// A revision is reported in replies, lists and watches, also if nothing else changes,
// and counts in the next term.
func TestRevisionsSurviveARestart(t *testing.T) {
	first := servertest.Start(t, servertest.Options{})
	operator := first.Operator("default")
	watch := watchGroups(t, operator)
	reply := upsert(t, operator, "workers", &nstancev1.GroupConfig{Template: "worker", Size: 1})
	assert.True(t, proto.Equal(&nstancev1.Revision{}, reply.Revision), "without a revision %v is reported", reply.Revision)
	for _, generation := range []int64{5, 6} {
		request := upsertRequest("u", generation, 1)
		reply, err := operator.UpsertGroup(t.Context(), request)
		require.NoError(t, err)
		assert.True(t, proto.Equal(request.Revision, reply.Revision), "the reply has %v", reply.Revision)
		assert.True(t, proto.Equal(request.Revision, list(t, operator)[0].Revision), "the list has %v", list(t, operator)[0].Revision)
		watch.until(func(e *nstancev1.GroupEvent) bool { return proto.Equal(e.Group.Revision, request.Revision) })
	}
	watchGroups(t, operator).untilSize("workers", 1)
	first.Stop()

	second := servertest.Start(t, servertest.Options{Authority: first.Authority, DataDir: first.DataDir, Kubernetes: first.Kubernetes, Addr: first.Addr})
	operator = second.Operator("default")
	assert.True(t, proto.Equal(upsertRequest("u", 6, 1).Revision, list(t, operator)[0].Revision), "after a restart the list is %v", list(t, operator))
	_, err := operator.UpsertGroup(t.Context(), upsertRequest("u", 5, 0))
	wantStale(t, err, map[string]string{"revision": "u/5", "stored-revision": "u/6"})
	_, err = operator.DeleteGroup(t.Context(), deleteRequest("u", 5))
	wantStale(t, err, map[string]string{"revision": "u/5", "stored-revision": "u/6"})
	if got := list(t, operator); len(got) != 1 || got[0].Size != 1 || len(got[0].ProviderIds) != 1 {
		t.Errorf("after refused requests there are groups %v", got)
	}
	_, err = operator.DeleteGroup(t.Context(), deleteRequest("u", 6))
	require.NoError(t, err)
	untilListed(t, operator)
	second.Stop()

	third := servertest.Start(t, servertest.Options{Authority: first.Authority, DataDir: first.DataDir, Kubernetes: first.Kubernetes, Addr: first.Addr})
	operator = third.Operator("default")
	require.Empty(t, list(t, operator))
	_, err = operator.UpsertGroup(t.Context(), upsertRequest("u", 6, 1))
	wantStale(t, err, map[string]string{"revision": "u/6"})
	require.Empty(t, list(t, operator))
	_, err = operator.DeleteGroup(t.Context(), deleteRequest("u", 6))
	require.NoError(t, err, "a repeated deletion")
}

func TestMalformedRevisionsAreInvalid(t *testing.T) {
	operator := servertest.Start(t, servertest.Options{}).Operator("default")
	_, err := operator.UpsertGroup(t.Context(), upsertRequest("", 1, 0))
	wantCode(t, "an upsert without a uid", err, codes.InvalidArgument)
	_, err = operator.DeleteGroup(t.Context(), deleteRequest("", 1))
	wantCode(t, "a deletion without a uid", err, codes.InvalidArgument)
	request := upsertRequest("u", 1, 0)
	request.Replaces = &nstancev1.Revision{}
	_, err = operator.UpsertGroup(t.Context(), request)
	wantCode(t, "an upsert that replaces nothing", err, codes.InvalidArgument)
}
