// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package server_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"nstance.dev/operator/pkg/server/servertest"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// loseCache deletes the cache of a server that is stopped.
func loseCache(t *testing.T, s *servertest.Server) {
	t.Helper()
	require.NoError(t, os.RemoveAll(filepath.Join(s.DataDir, "cache")))
}

// backUp returns a copy of the storage of a server that is stopped.
func backUp(t *testing.T, s *servertest.Server) string {
	t.Helper()
	backup := filepath.Join(t.TempDir(), "backup")
	require.NoError(t, os.CopyFS(backup, os.DirFS(s.Bucket())))
	return backup
}

// restore replaces the storage of a server that is stopped, as docs/runbooks/backup-and-restore.md says.
func restore(t *testing.T, s *servertest.Server, backup string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(s.Bucket()))
	require.NoError(t, os.CopyFS(s.Bucket(), os.DirFS(backup)))
	loseCache(t, s)
}

// restart starts another server with the storage and the Nodes of s, which is stopped.
func restart(t *testing.T, s *servertest.Server) *servertest.Server {
	t.Helper()
	return servertest.Start(t, sameState(s))
}

func sameState(s *servertest.Server) servertest.Options {
	return servertest.Options{DataDir: s.DataDir, Kubernetes: s.Kubernetes}
}

// nodeNames returns the names of all Nodes, sorted.
func nodeNames(t *testing.T, s *servertest.Server) []string {
	t.Helper()
	nodes, err := s.Kubernetes.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	var names []string
	for _, node := range nodes.Items {
		names = append(names, node.Name)
	}
	slices.Sort(names)
	return names
}

// deleteNode deletes the instance of a Node, like a provider that has lost it.
func deleteNode(t *testing.T, s *servertest.Server, name string) {
	t.Helper()
	require.NoError(t, s.Kubernetes.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}))
}

// upsertRevision is upsert for an operator that sends revisions.
func upsertRevision(t *testing.T, operator nstancev1.OperatorServiceClient, group, uid string, generation int64, c *nstancev1.GroupConfig) {
	t.Helper()
	_, err := operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
		Key: group, Config: c, Revision: &nstancev1.Revision{Uid: uid, Generation: generation},
	})
	require.NoError(t, err)
}

func createOnDemand(t *testing.T, operator nstancev1.OperatorServiceClient, group, key string) string {
	t.Helper()
	created, err := operator.CreateInstance(t.Context(), &nstancev1.CreateInstanceRequest{
		IdempotencyKey: key, Config: &nstancev1.InstanceConfig{Group: group, InstanceType: "c7i.large"},
	})
	require.NoError(t, err)
	return created.InstanceId
}

// eventually waits until a condition is true.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, eventTimeout, true, func(context.Context) (bool, error) {
		return condition(), nil
	})
	require.NoError(t, err, what)
}

// untilNodes waits for a number of Nodes.
func untilNodes(t *testing.T, s *servertest.Server, count int) []string {
	t.Helper()
	var names []string
	eventually(t, fmt.Sprintf("there are %d Nodes", count), func() bool {
		names = nodeNames(t, s)
		return len(names) == count
	})
	return names
}

// statusOf returns the status of a group, which must be listed.
func statusOf(t *testing.T, operator nstancev1.OperatorServiceClient, group string) *nstancev1.GroupStatus {
	t.Helper()
	listed := list(t, operator)
	i := slices.IndexFunc(listed, func(g *nstancev1.GroupStatus) bool { return g.Key == group })
	require.GreaterOrEqual(t, i, 0, "group %s is not listed", group)
	return listed[i]
}

// TestRestoredStorage restores a backup that is older than a larger size, a group, a
// replaced instance and an on-demand instance. No instance is deleted or created,
// neither before the operator has sent its groups nor after it.
func TestRestoredStorage(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	operator := s.Operator("default")
	events := watchGroups(t, operator)
	worker := func(size int32) *nstancev1.GroupConfig {
		return &nstancev1.GroupConfig{Template: "worker", Size: size}
	}
	upsertRevision(t, operator, "workers", "u1", 1, worker(2))
	old := events.untilSize("workers", 2)
	s.Stop()
	backup := backUp(t, s)

	s = restart(t, s)
	operator = s.Operator("default")
	events = watchGroups(t, operator)
	upsertRevision(t, operator, "workers", "u1", 2, worker(5))
	events.untilSize("workers", 5)
	replaced := instanceIDs(old)[0]
	deleteNode(t, s, replaced)
	events.until(func(e *nstancev1.GroupEvent) bool {
		return e.Group.Key == "workers" && e.Group.ActualSize == 5 && !slices.Contains(instanceIDs(e.Group), replaced)
	})
	upsertRevision(t, operator, "later", "u2", 1, worker(2))
	events.untilSize("later", 2)
	onDemand := createOnDemand(t, operator, "workers", "key")
	orphan := createOnDemand(t, operator, "later", "other key")
	want := untilNodes(t, s, 9)
	s.Stop()

	restore(t, s, backup)
	s = restart(t, s)
	operator = s.Operator("default")
	events = watchGroups(t, operator)
	before := statusOf(t, operator, "workers")
	assert.EqualValues(t, 2, before.Size)
	// Without a revision the operator sends the group.
	assert.Empty(t, before.Revision.GetUid())
	lost := statusOf(t, operator, "later")
	assert.False(t, lost.Deleting)
	assert.EqualValues(t, 2, lost.Size)
	assert.Len(t, lost.ProviderIds, 2)
	for id, key := range map[string]string{onDemand: "key", orphan: "other key"} {
		group := "workers"
		if id == orphan {
			group = "later"
		}
		assert.Equal(t, id, createOnDemand(t, operator, group, key), "the same request again")
	}
	events.until(func(e *nstancev1.GroupEvent) bool { return e.Group.Key == "workers" && e.Group.ActualSize == 5 })
	assert.Equal(t, want, nodeNames(t, s), "before the operator has sent its groups")

	// What the restored server has decided is still true after a change of leader.
	s.Stop()
	loseCache(t, s)
	s = restart(t, s)
	operator = s.Operator("default")
	events = watchGroups(t, operator)
	events.until(func(e *nstancev1.GroupEvent) bool { return e.Group.Key == "workers" && e.Group.ActualSize == 5 })
	upsertRevision(t, operator, "workers", "u1", 2, worker(5))
	upsertRevision(t, operator, "later", "u2", 1, worker(2))
	// Each watch begins with the present state.
	watchGroups(t, operator).untilSize("later", 2)
	events.untilSize("workers", 5)
	assert.Equal(t, "u1", statusOf(t, operator, "workers").Revision.GetUid())
	assert.Equal(t, want, nodeNames(t, s), "after the operator has sent its groups")

	// From now on the sizes count.
	upsertRevision(t, operator, "workers", "u1", 3, worker(1))
	events.untilSize("workers", 1)
	_, err := operator.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Key: "later", Revision: &nstancev1.Revision{Uid: "u2", Generation: 2}})
	require.NoError(t, err)
	left := untilNodes(t, s, 3)
	assert.Contains(t, left, onDemand)
	assert.Contains(t, left, orphan)
}

// TestLoweredSize restores a backup that is older than a smaller size. The remaining
// instances stay, and no other is created.
func TestLoweredSize(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	upsertRevision(t, s.Operator("default"), "workers", "u1", 1, &nstancev1.GroupConfig{Template: "worker", Size: 5})
	watchGroups(t, s.Operator("default")).untilSize("workers", 5)
	s.Stop()
	backup := backUp(t, s)
	s = restart(t, s)
	upsertRevision(t, s.Operator("default"), "workers", "u1", 2, &nstancev1.GroupConfig{Template: "worker", Size: 2})
	watchGroups(t, s.Operator("default")).untilSize("workers", 2)
	want := untilNodes(t, s, 2)
	s.Stop()
	restore(t, s, backup)

	s = restart(t, s)
	upsertRevision(t, s.Operator("default"), "workers", "u1", 2, &nstancev1.GroupConfig{Template: "worker", Size: 2})
	watchGroups(t, s.Operator("default")).untilSize("workers", 2)
	assert.Equal(t, want, nodeNames(t, s))
}

// TestDeletionOfLostGroup deletes a group that the storage has lost.
func TestDeletionOfLostGroup(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	operator := s.Operator("default")
	upsert(t, operator, "kept", &nstancev1.GroupConfig{Template: "worker", Size: 1})
	untilNodes(t, s, 1)
	s.Stop()
	backup := backUp(t, s)
	s = restart(t, s)
	upsertRevision(t, s.Operator("default"), "later", "u2", 1, &nstancev1.GroupConfig{Template: "worker", Size: 2})
	untilNodes(t, s, 3)
	s.Stop()
	restore(t, s, backup)

	s = restart(t, s)
	operator = s.Operator("default")
	watchGroups(t, operator).untilSize("later", 2)
	// The pool was imported and does not know the template.
	_, err := operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{Key: "later", Config: &nstancev1.GroupConfig{Size: 2}})
	wantCode(t, "a group without a template", err, codes.InvalidArgument)
	_, err = operator.DeleteGroup(t.Context(), &nstancev1.DeleteGroupRequest{Key: "later"})
	require.NoError(t, err)
	untilListed(t, operator, "kept")
	untilNodes(t, s, 1)
}

// TestBothRestored restores a storage whose groups are newer than the operator's. The
// operator's requests are refused with the stored revision, and nothing is deleted.
func TestBothRestored(t *testing.T) {
	s := servertest.Start(t, servertest.Options{})
	operator := s.Operator("default")
	worker := &nstancev1.GroupConfig{Template: "worker", Size: 2}
	upsertRevision(t, operator, "workers", "u1", 5, worker)
	untilNodes(t, s, 2)
	s.Stop()
	backup := backUp(t, s)
	s = restart(t, s)
	upsertRevision(t, s.Operator("default"), "workers", "u1", 7, &nstancev1.GroupConfig{Template: "worker", Size: 4})
	want := untilNodes(t, s, 4)
	s.Stop()
	restore(t, s, backup)

	s = restart(t, s)
	operator = s.Operator("default")
	assert.Empty(t, statusOf(t, operator, "workers").Revision.GetUid())
	_, err := operator.UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
		Key: "workers", Config: &nstancev1.GroupConfig{Size: 1}, Revision: &nstancev1.Revision{Uid: "u1", Generation: 3},
	})
	wantCode(t, "an older request", err, codes.FailedPrecondition)
	assert.EqualValues(t, 5, statusOf(t, operator, "workers").Revision.GetGeneration())
	assert.Equal(t, want, nodeNames(t, s))
}
