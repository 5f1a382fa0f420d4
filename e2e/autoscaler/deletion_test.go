// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A Machine that a user deletes is replaced in the same shard, and its Pods are
// evicted before its instance is deleted.
func TestMachineIsDeleted(t *testing.T) {
	t.Parallel()
	const name = "deleted"
	watchOperator(t)
	createPool(t, name, 3)
	before := untilRunning(t, name, 3)
	shardID := shardIDs[2]
	machine := before.on(shardID)[0]
	runPod(t, name, machine)
	from := env.AuditEnd(t)
	kubectlDelete(t, "machine", machine)
	untilMachinesDeleted(t, machine)
	after := untilRunning(t, name, 3)
	expectReplaced(t, before, after, machine)
	expectInstances(t, name, after)
	expectNodeChanges(t, from, name, 1, machine)
	expectDrained(t, from, name, machine)
}

// The shard and Cluster API drain the Node of an instance that the autoscaler removes, both at once.
// Neither evicts a Pod that may complete, and the instance is deleted when the Pod has completed.
func TestNoDrainEvictsAPodThatMayComplete(t *testing.T) {
	t.Parallel()
	const name = "completing"
	watchOperator(t)
	group := createPool(t, name, 3)
	shardID := shardIDs[0]
	node := untilRunning(t, name, 3).on(shardID)[0]
	runPod(t, name, node)
	patch := func(patch string, subresources ...string) {
		t.Helper()
		_, err := env.Kube.CoreV1().Pods(metav1.NamespaceDefault).Patch(t.Context(), podOn(name, node), mergePatch, []byte(patch), metav1.PatchOptions{}, subresources...)
		require.NoError(t, err)
	}
	patch(fmt.Sprintf(`{"metadata":{"labels":{%q:"wait-completed"}}}`, clusterv1.PodDrainLabel))

	from := env.AuditEnd(t)
	require.NoError(t, group.deleteNodes(t.Context(), nodesNamed(t, node)...))
	testcluster.Eventually(t, timeout, "both drains wait for the Pod", func(ctx context.Context) error {
		shardGroup, err := env.ShardGroup(ctx, name, shardID)
		if err != nil {
			return err
		}
		machine, err := env.Machines().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return errors.Join(
			waitsFor(shardGroup.Status.Conditions, v1beta1.ConditionDrainsProgressing, podOn(name, node)),
			waitsFor(machine.Status.Conditions, clusterv1.MachineDeletingCondition, podOn(name, node)),
		)
	})
	patch(`{"status":{"phase":"Succeeded"}}`, "status")
	untilMachinesDeleted(t, node)
	untilRunning(t, name, 2)
	expectNodeChanges(t, from, name, 0, node)
	assert.Empty(t, changesSince(t, from, func(w controlplane.Write) bool {
		return w.Resource == "pods" && w.Subresource == "eviction" && w.Name == podOn(name, node)
	}), "evictions")
}

// waitsFor succeeds if a condition is True and names a Pod.
func waitsFor(conditions []metav1.Condition, kind, pod string) error {
	condition := meta.FindStatusCondition(conditions, kind)
	if condition == nil || condition.Status != metav1.ConditionTrue || !strings.Contains(condition.Message, pod) {
		return fmt.Errorf("%s is %+v", kind, condition)
	}
	return nil
}

// When the replicas are lowered at the moment when a Machine is deleted, that Machine
// is not replaced, and its shard shrinks.
func TestMachineIsDeletedAndReplicasLowered(t *testing.T) {
	t.Parallel()
	const name = "lowered"
	watchOperator(t)
	group := createPool(t, name, 4)
	before := untilRunning(t, name, 4) // 2 1 1: an even spread would shrink the first shard
	machine := before.on(shardIDs[2])[0]
	from := env.AuditEnd(t)
	kubectlDelete(t, "machine", machine)
	require.NoError(t, group.setSize(t.Context(), 3))
	untilMachinesDeleted(t, machine)
	untilRunning(t, name, 3)
	untilResynced(t)
	expectInstances(t, name, before.without(machine))
	expectNodeChanges(t, from, name, 0, machine)
}

// The Machine of an instance that is lost is deleted, and replaced in the same shard.
func TestInstanceIsLost(t *testing.T) {
	t.Parallel()
	const name = "lost"
	watchOperator(t)
	createPool(t, name, 3)
	before := untilRunning(t, name, 3)
	machine := before.on(shardIDs[1])[0]
	from := env.AuditEnd(t)
	// The Node is the instance: the provider does not have it any more.
	require.NoError(t, env.Kube.CoreV1().Nodes().Delete(t.Context(), machine, metav1.DeleteOptions{}))
	untilMachinesDeleted(t, machine)
	after := untilRunning(t, name, 3)
	expectReplaced(t, before, after, machine)
	expectInstances(t, name, after)
	expectNodeChanges(t, from, name, 1, machine)
	expectMachinesDeleted(t, from, name, machine)
}

// A pool is deleted with all its objects, whether a user deletes the MachinePool or the
// NstanceMachinePool. Its Machines are deleted first, so that Pods are evicted.
func TestPoolIsDeleted(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, resource string }{
		{"machinepool-deleted", "machinepool.cluster.x-k8s.io"},
		{"nstancepool-deleted", "nstancemachinepool"},
	} {
		t.Run(tc.resource, func(t *testing.T) {
			t.Parallel()
			watchOperator(t)
			createPool(t, tc.name, 3)
			found := untilRunning(t, tc.name, 3)
			for _, id := range found.ids() {
				runPod(t, tc.name, id)
			}
			from := env.AuditEnd(t)
			kubectlDelete(t, tc.resource, tc.name)
			testcluster.Eventually(t, timeout, "nothing is left", func(ctx context.Context) error { return deleted(ctx, tc.name) })
			expectMachinesDeleted(t, from, tc.name, found.ids()...)
			expectNodeChanges(t, from, tc.name, 0, found.ids()...)
			for _, id := range found.ids() {
				expectDrained(t, from, tc.name, id)
			}
		})
	}
}

func kubectlDelete(t *testing.T, resource, name string) {
	t.Helper()
	env.Kubectl(t, "delete", "--wait=false", resource, name)
}

// expectReplaced fails the test unless one instance was replaced on the same shard,
// and the others are as before.
func expectReplaced(t *testing.T, before, after instances, machine string) {
	t.Helper()
	rest := before.without(machine)
	if lost := rest.without(after.ids()...); len(lost) > 0 {
		t.Errorf("instances %v were deleted too", lost.ids())
	}
	if _, found := after[machine]; found {
		t.Errorf("instance %s still exists", machine)
	}
	replacement := after.without(before.ids()...)
	if len(replacement) != 1 || len(replacement.on(before[machine])) != 1 {
		t.Errorf("it was replaced by %v, want one instance on shard %s", replacement, before[machine])
	}
}

// podOn returns the name of the only Pod that a test has on a Node.
func podOn(pool, node string) string { return pool + "-on-" + node }

// runPod creates a Pod that is bound to a Node and that no controller replaces, and
// returns when it runs.
func runPod(t *testing.T, pool, node string) {
	t.Helper()
	name, pods := podOn(pool, node), env.Kube.CoreV1().Pods(metav1.NamespaceDefault)
	_, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName:                     node,
			AutomountServiceAccountToken: ptr.To(false),
			Containers:                   []corev1.Container{{Name: "main", Image: "none"}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, timeout, "Pod "+name+" runs", func(ctx context.Context) error {
		pod, err := pods.Get(ctx, name, metav1.GetOptions{})
		if err == nil && pod.Status.Phase != corev1.PodRunning {
			err = errors.New("it is " + string(pod.Status.Phase))
		}
		return err
	})
}

// expectDrained fails the test unless Cluster API has cordoned a Node and evicted the
// Pod on it since from, before the Node was deleted.
func expectDrained(t *testing.T, from controlplane.Position, pool, node string) {
	t.Helper()
	// when returns the time of the first write that matches.
	when := func(what string, match testcluster.Match) (time.Time, error) {
		found := changesSince(t, from, match)
		if len(found) == 0 {
			return time.Time{}, fmt.Errorf("Node %s was not %s", node, what)
		}
		return found[0].Time, nil
	}
	cordoned, err := when("cordoned", func(w controlplane.Write) bool {
		return w.User == capiUser && w.Verb == "patch" && w.Resource == "nodes" && w.Name == node
	})
	evicted, evictErr := when("emptied", func(w controlplane.Write) bool {
		return w.User == capiUser && w.Resource == "pods" && w.Subresource == "eviction" && w.Name == podOn(pool, node) && w.Code == http.StatusCreated
	})
	deleted, deleteErr := when("deleted", func(w controlplane.Write) bool {
		return w.Verb == "delete" && w.Resource == "nodes" && w.Name == node
	})
	if err := errors.Join(err, evictErr, deleteErr); err != nil {
		t.Error(err)
		return
	}
	if evicted.Before(cordoned) || deleted.Before(evicted) {
		t.Errorf("Node %s was cordoned at %v, its Pod evicted at %v and it deleted at %v", node, cordoned, evicted, deleted)
	}
}

// With a health check of its pool, only a Node that is not ready any more is replaced,
// in the same shard.
func TestHealthCheck(t *testing.T) {
	const name, replicas = "checked", 3
	watchOperator(t)
	createPool(t, name, replicas)
	before := untilRunning(t, name, replicas)
	env.CreateHealthCheck(t, name)
	testcluster.Eventually(t, timeout, "all Machines are healthy", func(ctx context.Context) error { return healthy(ctx, name, replicas) })
	machine := before.on(shardIDs[1])[0]
	from := env.AuditEnd(t)
	thaw := testcluster.Freeze(t, env.Component(controlplane.KWOK)) // no kubelet reports
	setNotReady(t, machine)
	testcluster.Eventually(t, timeout, "the Machine is being deleted", func(ctx context.Context) error {
		machines, err := machinesOf(ctx, name)
		for _, m := range machines {
			if m.Name == machine && m.DeletionTimestamp == nil {
				err = fmt.Errorf("it is not, its conditions are %+v", m.Status.Conditions)
			}
		}
		return err
	})
	thaw()
	untilMachinesDeleted(t, machine)
	after := untilRunning(t, name, replicas)
	testcluster.Eventually(t, timeout, "all Machines are healthy again", func(ctx context.Context) error { return healthy(ctx, name, replicas) })
	untilResynced(t)
	expectReplaced(t, before, after, machine)
	expectInstances(t, name, after)
	expectNodeChanges(t, from, name, 1, machine)
	expectMachinesDeleted(t, from, name, machine)
}

// healthy succeeds when the health check of a pool counts so many Machines, all of
// them healthy.
func healthy(ctx context.Context, pool string, machines int32) error {
	found, err := env.ClusterAPI("machinehealthchecks").Get(ctx, pool, metav1.GetOptions{})
	if err != nil {
		return err
	}
	var check clusterv1.MachineHealthCheck
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &check); err != nil {
		return err
	}
	if status := check.Status; ptr.Deref(status.ExpectedMachines, -1) != machines || ptr.Deref(status.CurrentHealthy, -1) != machines {
		return fmt.Errorf("%d Machines, of which %d are healthy", ptr.Deref(status.ExpectedMachines, -1), ptr.Deref(status.CurrentHealthy, -1))
	}
	return nil
}

// setNotReady reports a Node as not ready, as its kubelet would.
func setNotReady(t *testing.T, node string) {
	t.Helper()
	nodes := env.Kube.CoreV1().Nodes()
	testcluster.Eventually(t, timeout, "Node "+node+" is not ready", func(ctx context.Context) error {
		found, err := nodes.Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		i := slices.IndexFunc(found.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
		if i < 0 {
			return errors.New("it has no such condition")
		}
		now := metav1.NewTime(time.Now())
		found.Status.Conditions[i] = corev1.NodeCondition{
			Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "set by a test",
			LastHeartbeatTime: now, LastTransitionTime: now,
		}
		_, err = nodes.UpdateStatus(ctx, found, metav1.UpdateOptions{})
		return err
	})
}
