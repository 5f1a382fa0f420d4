// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/operator/shard/connpool"
	"nstance.dev/operator/pkg/server/servertest"
	"nstance.dev/operator/pkg/testing/runtest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// newLateLeader returns the controller of a process that was paused while s led: its
// connection to the server is its own, its caches have object and cached as they were
// before the pause.
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

// The late leader is fenced by the server alone: it has not noticed the pause, and knows
// of no newer revision.
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

	// The present leader continues, and has lost no instance.
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

// The deletion of a pool arrives once more after the pool was created again.
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
		"the annotation nstance.dev/replaces-revision=uid-workers/2 replaces what the shard has")
	assert.Len(t, s.server.Upserts("workers"), 2, "upserts before the decision")
	assert.Equal(t, int32(4), s.serverGroups()[0].Size)

	s.annotate("uid-workers/2")
	s.untilRunning(2)
	assert.Len(t, s.server.Upserts("workers"), 3, "upserts after the decision")
	assert.Contains(t, s.conditions(), "Ready=True Ready: ")
}
