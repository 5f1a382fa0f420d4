// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/connpool"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// The UIDs of newObject and of another object.
const (
	ownUID   = "uid-workers"
	otherUID = "uid-other"
)

// stale returns the reply of a server with a newer revision.
func stale(t *testing.T) error {
	t.Helper()
	s, err := status.New(codes.FailedPrecondition, "the request is older").WithDetails(
		&errdetails.ErrorInfo{Domain: nstancev1.ErrorDomain, Reason: nstancev1.ReasonStaleRevision})
	require.NoError(t, err)
	return s.Err()
}

// reportedAt returns the group of newObject with a revision and a size.
func reportedAt(uid string, generation int64, size int32) *shard.Group {
	return changed(reported(), func(g *shard.Group) {
		g.Revision = &shard.Revision{UID: uid, Generation: generation}
		g.Size, g.ActualSize = size, size
	})
}

// withRevisions makes the fake shard support revisions and accept every request. It returns
// the configurations that the shard received.
func (h *harness) withRevisions() *[]shard.GroupConfig {
	received := &[]shard.GroupConfig{}
	h.Fake.OnUpsert = func(_, key string, config shard.GroupConfig) (shard.Group, error) {
		*received = append(*received, config)
		group := shardtest.Accept(key, config)
		group.Revision = config.Revision
		return group, nil
	}
	return received
}

// annotate sets the administrator's annotation, which does not change the generation.
func (h *harness) annotate(value string) {
	h.T.Helper()
	controllertest.Change(h.API, "workers--a", func(object *v1beta1.NstanceShardGroup) {
		object.Annotations = map[string]string{v1beta1.AnnotationConfirmOverwrite: value}
	})
}

func TestRequestsHaveTheRevisionOfTheObject(t *testing.T) {
	h := newHarness(t, newObject())
	received := h.withRevisions()
	h.Expect(upsert3, writeStatus)
	require.Len(t, *received, 1)
	assert.Equal(t, &shard.Revision{UID: ownUID, Generation: 1}, (*received)[0].Revision)
	assert.Nil(t, (*received)[0].Replaces)

	var deleted *shard.Revision
	h.Fake.OnDelete = func(_, _ string, revision *shard.Revision) error { deleted = revision; return nil }
	h.change(func(g *v1beta1.NstanceShardGroup) { controllertest.Deleting(g) })
	h.Expect(deleteGroup, writeStatus)
	assert.Equal(t, &shard.Revision{UID: ownUID, Generation: 2}, deleted)
}

// The server learns the revision by one call, even if nothing else differs.
func TestAnotherRevisionIsSentOnce(t *testing.T) {
	for name, group := range map[string]*shard.Group{
		"a group without a revision":    reportedAt("", 0, 3),
		"an earlier generation":         reportedAt(ownUID, 0, 3),
		"the group of a former object":  reportedAt(otherUID, 7, 3),
		"a generation without a change": reportedAt(ownUID, 0, 3),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, newObject())
			h.withRevisions()
			h.setGroup(group)
			h.Expect(upsert3, writeStatus)
			for range 3 {
				h.Advance(10 * time.Minute)
				h.Expect()
			}
			assert.Contains(t, h.conditions(), "Ready=True Ready: ")
			h.change(func(*v1beta1.NstanceShardGroup) {})
			h.Expect(upsert3, writeStatus)
			h.Expect()
			assert.Empty(t, h.Events())
		})
	}
}

// A server that does not report revisions is not called because of them.
func TestServerWithoutRevisionsIsNotCalledAgain(t *testing.T) {
	h := newHarness(t, newObject())
	h.setGroup(reported())
	h.Expect(writeStatus)
	h.change(func(*v1beta1.NstanceShardGroup) {})
	h.Expect(writeStatus)
	h.Expect()
}

const aheadMessage = "the shard has size 200 of generation 9, this object has size 3 of generation 1; " +
	"the annotation nstance.dev/confirm-overwrite=uid-workers/9 replaces what the shard has"

// No request is sent that the server would reject: no size, and no deletion.
func TestShardAhead(t *testing.T) {
	for name, object := range map[string]*v1beta1.NstanceShardGroup{"changed": newObject(), "deleted": controllertest.Deleting(newObject())} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, object)
			received := h.withRevisions()
			h.setGroup(reportedAt(ownUID, 9, 200))
			h.Expect(writeStatus)
			conditions := []string{"ShardReachable=True Reachable: ", "Ready=False ShardAhead: " + aheadMessage}
			assert.Equal(t, conditions, h.conditions())
			for range 4 {
				h.Advance(10 * time.Minute)
				h.Expect()
			}
			h.ExpectEvents("Warning ShardAhead " + aheadMessage)

			// A decision about another revision has no effect.
			h.annotate(ownUID + "/8")
			h.Expect()
			var deleted *shard.Revision
			h.Fake.OnDelete = func(_, _ string, revision *shard.Revision) error { deleted = revision; return nil }
			h.annotate(ownUID + "/9")
			if name == "deleted" {
				h.Expect(deleteGroup, writeStatus)
				assert.Equal(t, &shard.Revision{UID: ownUID, Generation: 9}, deleted)
				return
			}
			h.Expect(upsert3, writeStatus)
			require.Len(t, *received, 1)
			assert.Equal(t, &shard.Revision{UID: ownUID, Generation: 1}, (*received)[0].Revision)
			assert.Equal(t, &shard.Revision{UID: ownUID, Generation: 9}, (*received)[0].Replaces)
			h.Expect()
			assert.NotContains(t, strings.Join(h.conditions(), "\n"), "ShardAhead")
		})
	}
}

// The generation of the object catches up: after a restore its spec was changed often enough,
// or the cache of a new leader was late.
func TestShardIsNoLongerAhead(t *testing.T) {
	h := newHarness(t, newObject())
	h.withRevisions()
	h.setGroup(reportedAt(ownUID, 2, 200))
	h.Expect(writeStatus)
	h.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size = 200 })
	h.Expect(writeStatus)
	assert.Contains(t, h.conditions(), "Ready=True Ready: ")
}

// refusedHarness returns a harness whose shard rejects the object as stale.
func refusedHarness(t *testing.T, group *shard.Group) *harness {
	t.Helper()
	h := newHarness(t, newObject())
	h.setGroup(group)
	h.Fake.Fail["upsert"] = stale(t)
	assert.Equal(t, rejectedRetry, h.Expect(upsert3, writeStatus), "the delay of the next try")
	return h
}

// A rejected call is not repeated before something changes, and is not a rejection of the
// configuration.
func TestStaleObjectIsReportedOnceAndNotSentAgain(t *testing.T) {
	for name, test := range map[string]struct {
		group   *shard.Group
		message string
	}{
		"the group is that of another object": {reportedAt(otherUID, 4, 200),
			"the shard has size 200 of generation 4 of another object with uid uid-other, this object has size 3 of generation 1; " +
				"the annotation nstance.dev/confirm-overwrite=uid-other/4 replaces what the shard has"},
		"the group was deleted": {nil, "the shard has deleted the group of this object, which has size 3 of generation 1; " +
			"the annotation nstance.dev/confirm-overwrite=uid-workers replaces what the shard has"},
		"the cache is late": {reportedAt(ownUID, 0, 5), "the request is older"},
	} {
		t.Run(name, func(t *testing.T) {
			h := refusedHarness(t, test.group)
			assert.Equal(t, []string{"ShardReachable=True Reachable: ", "Ready=False ShardAhead: " + test.message}, h.conditions())
			for range 4 {
				h.Advance(time.Minute)
				if requeue := h.Expect(); requeue <= 0 || requeue > rejectedRetry {
					t.Errorf("the next try is in %s", requeue)
				}
			}
			h.Advance(time.Minute)
			assert.Equal(t, rejectedRetry, h.Expect(upsert3), "the delay after the second try")
			h.ExpectEvents("Warning ShardAhead " + test.message)
		})
	}
}

func TestStaleObjectIsSentAgainAfterAChange(t *testing.T) {
	for name, change := range map[string]func(*harness){
		"of the object":                 func(h *harness) { h.change(func(*v1beta1.NstanceShardGroup) {}) },
		"of the reported revision":      func(h *harness) { h.setGroup(reportedAt(otherUID, 5, 200)) },
		"of the reported configuration": func(h *harness) { h.setGroup(changed(h.group(), func(g *shard.Group) { g.ETag = "etag-2" })) },
		"of the decision":               func(h *harness) { h.annotate(otherUID + "/4") },
	} {
		t.Run(name, func(t *testing.T) {
			h := refusedHarness(t, reportedAt(otherUID, 4, 200))
			received := h.withRevisions()
			delete(h.Fake.Fail, "upsert")
			change(h)
			h.Expect(upsert3, writeStatus)
			if name == "of the decision" {
				assert.Equal(t, &shard.Revision{UID: otherUID, Generation: 4}, (*received)[0].Replaces)
			}
			assert.NotContains(t, strings.Join(h.conditions(), "\n"), "ShardAhead")
			h.Expect()
		})
	}
}

// A group that was deleted on the shard is created again if an administrator decides so.
func TestDeletedGroupIsCreatedAgainByDecision(t *testing.T) {
	h := refusedHarness(t, nil)
	h.annotate("another")
	h.Expect(upsert3)
	received := h.withRevisions()
	delete(h.Fake.Fail, "upsert")
	h.annotate(ownUID)
	h.Expect(upsert3, writeStatus)
	assert.Equal(t, &shard.Revision{UID: ownUID}, (*received)[0].Replaces)
	h.Expect()
}

// A rejected deletion is not repeated either.
func TestStaleDeletionIsNotSentAgain(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.setGroup(reportedAt(ownUID, 0, 3))
	h.Fake.Fail["delete"] = stale(t)
	assert.Equal(t, rejectedRetry, h.Expect(deleteGroup, writeStatus))
	h.Advance(time.Minute)
	h.Expect()
	assert.Contains(t, h.conditions(), "Ready=False ShardAhead: the request is older")
	delete(h.Fake.Fail, "delete")
	h.setGroup(reportedAt(ownUID, 1, 3))
	h.Expect(deleteGroup, writeStatus)
}

// A late cache looks like the group of another object: the finalizer stays until the cache
// must be newer than the deletion.
func TestDeletionOfAReplacedGroup(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.setGroup(reportedAt(otherUID, 4, 200))
	assert.Equal(t, deletionSettles, h.Expect(deleteGroup, writeStatus))
	h.Advance(deletionSettles - time.Second)
	assert.Equal(t, time.Second, h.Expect())
	h.Advance(time.Second)
	h.Expect(deleteGroup, release)
	if h.object() != nil {
		t.Error("the object is still there")
	}
	h.Expect()
	assert.Empty(t, h.controller.deletions)
}

// The first deletion of an object confirms nothing for an object that has its name now.
func TestDeletionOfAReplacedGroupBySuccessor(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.setGroup(reportedAt(otherUID, 4, 200))
	h.Expect(deleteGroup, writeStatus)
	h.Advance(deletionSettles)
	h.change(func(object *v1beta1.NstanceShardGroup) { object.UID = "uid-successor" })
	assert.Equal(t, deletionSettles, h.Expect(deleteGroup, writeStatus))
	assert.NotNil(t, h.object(), "the object that was deleted a moment ago")
	h.Advance(deletionSettles)
	h.Expect(deleteGroup, release)
}

// The delay begins again if the shard has reported the group of the object itself meanwhile.
func TestDeletionOfAGroupThatIsReplacedAgain(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.setGroup(reportedAt(otherUID, 4, 200))
	assert.Equal(t, deletionSettles, h.Expect(deleteGroup, writeStatus))
	h.Advance(deletionSettles)
	h.setGroup(reportedAt(ownUID, 0, 3))
	h.Expect(deleteGroup, writeStatus)
	h.setGroup(reportedAt(otherUID, 4, 200))
	assert.Equal(t, deletionSettles, h.Expect(deleteGroup, writeStatus))
	assert.NotNil(t, h.object())
}

// The deletion has deleted the group of the other object: the finalizer stays until its
// instances are deleted.
func TestDeletionOfAGroupThatTheObjectNeverHad(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.setGroup(reportedAt(otherUID, 4, 3))
	h.Expect(deleteGroup, writeStatus)
	h.setGroup(changed(reportedAt("", 0, 0), func(g *shard.Group) { g.Deleting, g.ActualSize = true, 3 }))
	h.Expect(writeStatus)
	h.Advance(time.Hour)
	h.Expect()
	h.setGroup(nil)
	h.Expect(deleteGroup, release)
}

// The cache changes during a deletion: its new content may be older than the deletion.
func TestDeletionOfAReplacedGroupThatAppearsAgain(t *testing.T) {
	h := newHarness(t, controllertest.Deleting(newObject()))
	h.setGroup(reportedAt(otherUID, 4, 200))
	h.Expect(deleteGroup, writeStatus)
	h.Advance(time.Second)
	h.setGroup(nil)
	h.Fake.OnDelete = func(string, string, *shard.Revision) error {
		h.setGroup(reportedAt(otherUID, 4, 200))
		return nil
	}
	h.Expect(deleteGroup, writeStatus)
	if h.object() == nil {
		t.Error("the object was deleted although the shard has a group")
	}
}

func TestADecisionEnqueuesTheShardGroup(t *testing.T) {
	h := newHarness(t, newObject())
	decided := newObject()
	decided.ResourceVersion = "another"
	decided.Annotations = map[string]string{v1beta1.AnnotationConfirmOverwrite: ownUID + "/9"}
	got := controllertest.Enqueued(t, &h.controller.queue, func() { h.controller.shardGroupChanged(newObject(), decided) })
	if want := []string{"workers--a at 0s"}; !slices.Equal(got, want) {
		t.Errorf("enqueued %q, want %q", got, want)
	}
}

// newLateLeader returns the controller of a process that was paused while s led. It has its
// own connection to the server. Its caches have object and cached from before the pause.
func newLateLeader(t *testing.T, s *served, object *v1beta1.NstanceShardGroup, cached *shard.Group) *harness {
	t.Helper()
	pool := connpool.New(connpool.Options{Credentials: s.servers.Identity.Credentials(servertest.ClusterID)})
	pool.Set(map[string]shard.Endpoint{"a": {Operator: s.server.Addr}})
	connected := make(chan struct{}, 1)
	runtest.Start(t, func(ctx context.Context) {
		pool.Run(ctx, func(context.Context, string, nstancev1.OperatorServiceClient) { connected <- struct{}{} })
	})
	<-connected
	h := newHarnessOf(t, func(h *harness) { h.ShardClient = pool }, object)
	h.setGroup(cached)
	return h
}

// serverGroups returns the groups that the server has.
func (s *served) serverGroups() []*nstancev1.GroupStatus {
	s.T.Helper()
	reply, err := s.server.Operator("default").ListGroups(s.T.Context(), &emptypb.Empty{})
	require.NoError(s.T, err)
	return reply.Groups
}

// deleteObject deletes the shard group, and returns when the server has confirmed it.
func (s *served) deleteObject() {
	s.T.Helper()
	s.change(func(g *v1beta1.NstanceShardGroup) { controllertest.Deleting(g) })
	runtest.Eventually(s.T, "the shard group is deleted", func() bool {
		_, _, err := s.Sync()
		require.NoError(s.T, err)
		return s.object() == nil
	})
}

// Only the server fences the late leader, which has not noticed the pause and knows no newer
// revision.
func TestLateLeaderDoesNotShrinkAGroup(t *testing.T) {
	s := newServed(t, 2, true)
	before := s.object()
	cached := s.untilRunning(2)
	s.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size = 4 })
	s.untilRunning(4)
	running := ids(s.until("all are listed", listsRunning))

	cached.Size, cached.Revision = 1, &shard.Revision{UID: string(before.UID)}
	late := newLateLeader(t, s, before, &cached)
	_, requeue, err := late.Sync()
	require.NoError(t, err)
	assert.Equal(t, rejectedRetry, requeue)
	upserts := s.server.Upserts("workers")
	if len(upserts) != 3 || upserts[2].Config.Size != 2 || upserts[2].Revision.Generation != 1 {
		t.Fatalf("the server received %v, want a late one with size 2 of generation 1", upserts)
	}
	group := s.serverGroups()[0]
	if group.Size != 4 || group.Revision.Generation != 2 {
		t.Errorf("after the late request the group is %v", group)
	}
	assert.Equal(t, []string{
		"ShardReachable=True Reachable: ",
		"Ready=False ShardAhead: group default/workers: the request has generation 1 of object uid-workers, but the group has the newer generation 2",
	}, late.conditions())
	_, _, err = late.Sync()
	require.NoError(t, err)
	assert.Len(t, s.server.Upserts("workers"), 3, "a refused request is repeated")

	// The present leader continues, and no instance was lost.
	s.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size = 5 })
	s.untilRunning(5)
	after := ids(s.until("all are listed", listsRunning))
	for _, id := range running {
		if !slices.Contains(after, id) {
			t.Errorf("instance %s was terminated", id)
		}
	}
}

func TestLateLeaderDoesNotCreateADeletedGroup(t *testing.T) {
	s := newServed(t, 2, true)
	before := s.object()
	s.untilRunning(2)
	s.deleteObject()
	require.Empty(t, s.serverGroups())

	late := newLateLeader(t, s, before, nil)
	_, requeue, err := late.Sync()
	require.NoError(t, err)
	assert.Equal(t, rejectedRetry, requeue)
	assert.Len(t, s.server.Upserts("workers"), 2, "upserts at the server")
	assert.Empty(t, s.serverGroups(), "after the late request")
	assert.Contains(t, late.conditions()[1], "Ready=False ShardAhead: the shard has deleted the group of this object, which has size 2 of generation 1")
	nodes, err := s.server.Kubernetes.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Empty(t, nodes.Items)
}

// The deletion of a former pool arrives again after the pool was created again.
func TestLateLeaderDoesNotDeleteASuccessor(t *testing.T) {
	s := newServed(t, 2, true)
	before := controllertest.Deleting(s.object())
	cached := s.untilRunning(2)
	s.deleteObject()
	successor := newObject()
	successor.UID, successor.Spec = "uid-successor", before.Spec
	s.harness = newHarnessOf(t, func(h *harness) { h.UseServers(s.servers) }, successor)
	s.untilRunning(2)

	deletions := len(s.server.Calls("DeleteGroup"))
	late := newLateLeader(t, s, before, &cached)
	_, _, err := late.Sync()
	require.NoError(t, err)
	assert.Len(t, s.server.Calls("DeleteGroup"), deletions+1, "deletions at the server")
	group := s.serverGroups()[0]
	if group.Size != 2 || group.Deleting || group.Revision.Uid != "uid-successor" {
		t.Errorf("after the late request the group is %v", group)
	}
}

// After a restore of etcd the shard keeps its size until an administrator decides.
func TestRestoredObjectReplacesTheGroupByDecision(t *testing.T) {
	s := newServed(t, 2, true)
	backup := s.object()
	s.untilRunning(2)
	s.change(func(g *v1beta1.NstanceShardGroup) { g.Spec.Size = 4 })
	s.untilRunning(4)

	s.harness = newHarnessOf(t, func(h *harness) { h.UseServers(s.servers) }, backup)
	for range 3 {
		_, _, err := s.Sync()
		require.NoError(t, err)
	}
	assert.Contains(t, s.conditions(), "Ready=False ShardAhead: the shard has size 4 of generation 2, this object has size 2 of generation 1; "+
		"the annotation nstance.dev/confirm-overwrite=uid-workers/2 replaces what the shard has")
	assert.Len(t, s.server.Upserts("workers"), 2, "upserts before the decision")
	assert.Equal(t, int32(4), s.serverGroups()[0].Size)

	s.annotate("uid-workers/2")
	s.untilRunning(2)
	assert.Len(t, s.server.Upserts("workers"), 3, "upserts after the decision")
	assert.Contains(t, s.conditions(), "Ready=True Ready: ")
}
