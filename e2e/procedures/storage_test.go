// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package procedures

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/server/storage"
)

// podNamespace has the Pods that request machines.
const podNamespace = "restored"

// Each pool is named after the change to it after the backup.
const raised, lowered, added, dropped, kept = "raised", "lowered", "added", "dropped", "kept"

// After the storage of the servers was restored, sizes that were raised or lowered, pools that
// were created, an instance that was replaced and on-demand instances that were created since the
// backup neither terminate an instance nor create a second instance. A pool that was deleted since
// comes back, until the last step of the procedure.
func TestStorageRestore(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	createPools(t, 4, raised, lowered, dropped, kept)
	env.CreateNamespace(t, podNamespace)
	early := createPod(t, "early")
	untilRuns(t, early)

	stopServers(t)
	backup := filepath.Join(t.TempDir(), "bucket")
	require.NoError(t, os.CopyFS(backup, os.DirFS(env.Installation.Bucket())))
	startServers(t)
	env.Scale(t, raised, 12)
	env.UntilRunning(t, raised, 12)
	env.Scale(t, lowered, 2)
	env.UntilRunning(t, lowered, 2)
	require.NoError(t, env.CreatePoolOnAllShards(t.Context(), added, 4))
	env.UntilRunning(t, added, 4)
	deletePool(t, dropped)
	late := createPod(t, "late")
	untilRuns(t, late)
	loseInstance(t, kept)
	env.UntilRunning(t, kept, 4)
	before, creations := nodes(t), env.CountCreations(t)
	require.Len(t, before, 12+2+4+4+2)

	p := env.StartProcedure(t, "Restore the storage of the servers", map[string]string{
		"NAMESPACE": installation.Namespace,
		"BUCKET":    env.Installation.Bucket(),
		"BACKUP":    backup,
		"DELETED":   dropped,
	})
	var from controlplane.Position
	p.Do("Stop all servers of the cluster", func() {
		stopServers(t)
		from = env.AuditEnd(t)
	})
	p.Run("Restore the bucket")
	p.Do("Delete the cache folders of all servers, and start the servers", func() {
		loseCaches(t)
		startServers(t)
	})
	// The pool that was deleted exists again some seconds later.
	env.UntilRunning(t, dropped, 4)
	p.Run("Wait until the shards are connected and the pools run")
	env.UntilRunning(t, raised, 12)
	env.UntilRunning(t, lowered, 2)
	env.UntilRunning(t, added, 4)
	env.UntilRunning(t, kept, 4)
	for _, pod := range []*corev1.Pod{early, late} {
		untilRuns(t, pod)
	}
	for _, id := range env.ShardIDs {
		for name, size := range map[string]int32{raised: 6, lowered: 1, added: 2, kept: 2} {
			untilConfirmed(t, id, name, size)
		}
	}
	expectDeletions(t, from)
	after := nodes(t)
	for name, node := range before {
		assert.Equal(t, node.UID, after[name].UID, "Node %s of group %s", name, node.Labels[v1beta1.LabelGroup])
		delete(after, name)
	}
	assert.Len(t, after, 4, "new Nodes")
	for _, node := range after {
		assert.Equal(t, dropped, node.Labels[v1beta1.LabelGroup])
	}
	made := env.Writes(t, from, func(r controlplane.Request) bool { return r.Action() == "create nodes" })
	assert.Len(t, made, 4, "created Nodes: %s", testcluster.Describe(made))
	assert.Equal(t, creations, env.CountCreations(t), "on-demand instances that were created")

	p.Run("Delete once more")
	require.NoError(t, env.PoolDeleted(t.Context(), dropped))
	// The sizes count again.
	env.Scale(t, kept, 2)
	env.UntilRunning(t, kept, 2)
	testcluster.Eventually(t, time.Minute, "the surplus Nodes are deleted", func(ctx context.Context) error {
		left, err := listNodes(ctx)
		if err == nil && len(left) != len(before)-2 {
			err = fmt.Errorf("%d Nodes", len(left))
		}
		return err
	})
	for _, pod := range []*corev1.Pod{early, late} {
		untilRuns(t, pod)
	}

	t.Run("the groups are lost", testLostGroups)
}

// testLostGroups removes the groups of a shard from the storage. The server does not
// serve, and continues when they are restored.
func testLostGroups(t *testing.T) {
	const pool = kept
	id := env.ShardIDs[0]
	server := env.ShardServer(id)
	object := filepath.Join(env.Installation.Bucket(), filepath.FromSlash(storage.GroupsKey(id)))
	before, from := nodes(t), env.AuditEnd(t)
	require.NoError(t, server.Stop(t.Context()))
	groups, err := os.ReadFile(object)
	require.NoError(t, err)
	require.NoError(t, os.Remove(object))
	require.NoError(t, os.RemoveAll(env.Installation.CacheDir(server.Name)))
	started := make(chan error, 1)
	go func() { started <- server.Start(context.WithoutCancel(t.Context())) }()

	testcluster.Eventually(t, time.Minute, "the shard group has the reason", func(ctx context.Context) error {
		group, err := env.ShardGroup(ctx, pool, id)
		if err != nil {
			return err
		}
		reachable := meta.FindStatusCondition(group.Status.Conditions, v1beta1.ConditionShardReachable)
		if reachable == nil || reachable.Status != metav1.ConditionFalse || !strings.Contains(reachable.Message, storage.GroupsKey(id)) {
			return fmt.Errorf("%+v", reachable)
		}
		return nil
	})
	response, err := http.Get(server.Ready.URL) //nolint:noctx // a probe
	require.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, errors.Join(err, response.Body.Close()))
	assert.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
	assert.Contains(t, string(body), "reset-groups --shard "+id)
	// The other shards continue.
	env.Scale(t, pool, 4)
	testcluster.Eventually(t, time.Minute, "the other shard grows", func(ctx context.Context) error {
		group, err := env.Group(ctx, env.ShardIDs[1], pool)
		if err == nil && group.GetActualSize() != 2 {
			err = fmt.Errorf("it runs %d instances", group.GetActualSize())
		}
		return err
	})

	require.NoError(t, os.WriteFile(object, groups, 0o600))
	require.NoError(t, <-started)
	env.UntilRunning(t, pool, 4)
	expectDeletions(t, from)
	after := nodes(t)
	assert.Len(t, after, len(before)+2)
	for name, node := range before {
		assert.Equal(t, node.UID, after[name].UID, "Node %s", name)
	}
}

func stopServers(t *testing.T) {
	t.Helper()
	for _, id := range env.ShardIDs {
		require.NoError(t, env.ShardServer(id).Stop(t.Context()))
	}
}

func startServers(t *testing.T) {
	t.Helper()
	for _, id := range env.ShardIDs {
		testcluster.Start(t, env.ShardServer(id))
	}
}

func loseCaches(t *testing.T) {
	t.Helper()
	for _, id := range env.ShardIDs {
		require.NoError(t, os.RemoveAll(env.Installation.CacheDir(env.ShardServer(id).Name)))
	}
}

// createPools creates pools on all shards and waits until they run. The pool that grows has
// Machines.
func createPools(t *testing.T, replicas int32, names ...string) {
	t.Helper()
	for _, name := range names {
		pool := testcluster.NewNstanceMachinePool(name, env.ShardIDs...)
		if name == raised {
			pool.Spec.MachineMode = v1beta1.MachineModeAlways
		}
		require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(name, replicas), pool))
	}
	for _, name := range names {
		env.UntilRunning(t, name, replicas)
	}
}

// deletePool deletes a pool and waits until it is deleted.
func deletePool(t *testing.T, name string) {
	t.Helper()
	env.DeleteMachinePool(t, name)
	testcluster.Eventually(t, time.Minute, "the pool is deleted", func(ctx context.Context) error { return env.PoolDeleted(ctx, name) })
}

// nodes returns all Nodes by name.
func nodes(t *testing.T) map[string]corev1.Node {
	t.Helper()
	byName, err := listNodes(t.Context())
	require.NoError(t, err)
	return byName
}

func listNodes(ctx context.Context) (map[string]corev1.Node, error) {
	list, err := env.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	byName := map[string]corev1.Node{}
	for _, node := range list.Items {
		byName[node.Name] = node
	}
	return byName, nil
}

// loseInstance deletes an instance of a group, like a provider that has lost it, and waits
// until its replacement runs.
func loseInstance(t *testing.T, group string) {
	t.Helper()
	lost, err := env.Nodes(t.Context(), group)
	require.NoError(t, err)
	require.NoError(t, env.Kube.CoreV1().Nodes().Delete(t.Context(), lost[0].Name, metav1.DeleteOptions{}))
	testcluster.Eventually(t, time.Minute, "the instance is replaced", func(ctx context.Context) error {
		running, err := env.ReadyNodeIDs(ctx, group)
		if err == nil && (len(running) != len(lost) || slices.Contains(running, lost[0].Spec.ProviderID)) {
			err = fmt.Errorf("the Nodes are %v", running)
		}
		return err
	})
}

// untilConfirmed waits until a shard has a size and the revision of the shard group.
func untilConfirmed(t *testing.T, shard, name string, size int32) {
	t.Helper()
	testcluster.Eventually(t, time.Minute, fmt.Sprintf("%s has the revision of %s", shard, name), func(ctx context.Context) error {
		object, err := env.ShardGroup(ctx, name, shard)
		if err != nil {
			return err
		}
		group, err := env.Group(ctx, shard, name)
		if err != nil {
			return err
		}
		if revision := group.GetRevision(); group.GetSize() != size || revision.GetUid() != string(object.UID) || revision.GetGeneration() != object.Generation {
			return fmt.Errorf("the group has size %d and revision %v, the object has %s/%d", group.GetSize(), revision, object.UID, object.Generation)
		}
		return testcluster.HasCondition(object.Status.Conditions, v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonReady)
	})
}

// expectDeletions fails the test if another user than the test has deleted a Node, a Machine or an
// NstanceMachine.
func expectDeletions(t *testing.T, from controlplane.Position) {
	t.Helper()
	deletions := env.Writes(t, from, func(r controlplane.Request) bool {
		return strings.HasPrefix(r.Verb, "delete") && slices.Contains([]string{"nodes", "machines", "nstancemachines", "pods"}, r.Resource)
	})
	assert.Empty(t, deletions, "deletions: %s", testcluster.Describe(deletions))
}

// createPod creates a Pod that requests a machine. The machine and the Pod are deleted at
// the end of the test.
func createPod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	pod, err := env.Kube.CoreV1().Pods(podNamespace).
		Create(t.Context(), testcluster.NewOnDemandPod(podNamespace, name, builders), metav1.CreateOptions{})
	require.NoError(t, err)
	return pod
}

// untilRuns waits until a Pod runs on the Node of its own machine, which is ready.
func untilRuns(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "Pod "+pod.Name+" runs", func(ctx context.Context) error {
		live, err := env.Kube.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if live.UID != pod.UID || live.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("the Pod is %s (UID %s)", live.Status.Phase, live.UID)
		}
		machines, err := env.NstanceMachines().List(ctx, metav1.ListOptions{LabelSelector: v1beta1.LabelPodUID + "=" + string(pod.UID)})
		if err != nil || len(machines.Items) != 1 {
			return errors.Join(err, fmt.Errorf("%d NstanceMachines", len(machines.Items)))
		}
		machine := machines.Items[0]
		if machine.Status.InstanceID != live.Spec.NodeName {
			return fmt.Errorf("the Pod is on Node %s, the machine is %s", live.Spec.NodeName, machine.Status.InstanceID)
		}
		return testcluster.HasCondition(machine.Status.Conditions, v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonReady)
	})
}
