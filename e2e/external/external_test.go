// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package external

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// The workload cluster can be reached.
func TestReachable(t *testing.T) {
	t.Run("Scale", testScale)
	t.Run("Drain", testDrain)
	t.Run("Pod", testPodGetsAMachine)
}

// A pool in the management cluster has its Nodes in the workload cluster, and Cluster API
// finds them there.
func testScale(t *testing.T) {
	t.Parallel()
	const name = "scaled"
	env.CreatePoolForTest(t, name, 0)
	for _, replicas := range []int32{3, 1} {
		env.Scale(t, name, replicas)
		env.UntilRunning(t, name, replicas)
		testcluster.Eventually(t, timeout, "the MachinePool refers to the Nodes", func(ctx context.Context) error {
			machinePool, err := env.MachinePools().Get(ctx, name, metav1.GetOptions{})
			if err == nil && len(machinePool.Status.NodeRefs) != int(replicas) {
				err = fmt.Errorf("nodeRefs %v, want %d", machinePool.Status.NodeRefs, replicas)
			}
			return err
		})
	}
	nodes, err := env.Kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	assert.Empty(t, nodes.Items, "Nodes of the management cluster")
}

// An instance is deleted when the Pods of its Node in the workload cluster have left it,
// and not before.
func testDrain(t *testing.T) {
	t.Parallel()
	const name = "drained"
	env.CreatePoolForTest(t, name, 1)
	env.UntilRunning(t, name, 1)
	node := onlyNode(t, name)
	env.CreateNamespace(t, name)
	createPod(t, newPod(name, "web", node.Name))
	protect(t, name)

	from := end(t, env.Workload)
	env.Scale(t, name, 0)
	testcluster.Eventually(t, timeout, "the shard group names the Pod that blocks the drain", func(ctx context.Context) error {
		return drainBlocked(ctx, name, "web")
	})
	assert.Contains(t, operatorRequests(t, env.Workload, from), "patch nodes")
	expectInstance(t, name, node.Name)
	count, err := countEvents(t.Context(), node.Name, "DrainStarted")
	require.NoError(t, err)
	assert.Equal(t, 1, count, "events about the Node in the workload cluster")

	unprotect(t, name)
	untilNoNodes(t, name)
	expectPodDeleted(t, name, "web")
}

// A Pod in the workload cluster gets a Machine in the management cluster, where its
// namespace does not exist, and a Node in its own cluster.
func testPodGetsAMachine(t *testing.T) {
	t.Parallel()
	const name = "team"
	env.CreateNamespace(t, name)
	pod := newPod(name, "job", "")
	pod.Annotations = map[string]string{v1beta1.AnnotationOnDemandGroup: group}
	pod.Spec.NodeSelector = map[string]string{installation.LabelPodNamespace: name, installation.LabelPodName: pod.Name}
	pod = createPod(t, pod)
	machine := "on-demand-" + string(pod.UID)
	testcluster.Eventually(t, timeout, "the Pod runs on the Node of its Machine", func(ctx context.Context) error {
		created, err := env.Machines().Get(ctx, machine, metav1.GetOptions{})
		if err != nil {
			return err
		}
		running, err := env.NodeKube.CoreV1().Pods(name).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if running.Status.Phase != corev1.PodRunning || created.Status.NodeRef.Name != running.Spec.NodeName {
			return fmt.Errorf("Pod is %s on Node %q, the Machine has %q", running.Status.Phase, running.Spec.NodeName, created.Status.NodeRef.Name)
		}
		return nil
	})
	created, err := env.NstanceMachines().Get(t.Context(), machine, metav1.GetOptions{})
	require.NoError(t, err)
	for _, owner := range created.OwnerReferences {
		assert.Equal(t, "Machine", owner.Kind, "an owner in the same cluster")
	}
	require.NoError(t, env.NodeKube.CoreV1().Pods(name).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}))
	testcluster.Eventually(t, timeout, "the Machine and its Node are deleted", func(ctx context.Context) error {
		return env.MachineDeleted(ctx, machine, created.Status.InstanceID)
	})
}

// While the workload cluster is not reachable, sizes change and no drain is acknowledged:
// a Node that the operator cannot see is not one that does not exist. An operator that
// starts meanwhile does the same.
func TestWorkloadClusterNotReachable(t *testing.T) {
	const name, idle = "unreachable", "idle"
	require.NoError(t, env.CreatePoolOnAllShards(t.Context(), name, 1))
	require.NoError(t, env.CreatePoolOnAllShards(t.Context(), idle, 2))
	env.UntilRunning(t, name, 1)
	env.UntilRunning(t, idle, 2)
	node := onlyNode(t, name)
	env.CreateNamespace(t, name)
	createPod(t, newPod(name, "web", node.Name))
	pool, err := env.NstanceMachinePool(t.Context(), idle)
	require.NoError(t, err)

	server := env.Workload.Component(controlplane.APIServer)
	testcluster.Kill(t, server)
	testcluster.Kill(t, env.OperatorProcess())
	env.ReleaseLease(t)
	testcluster.Start(t, env.OperatorProcess())
	env.Scale(t, name, 0)
	testcluster.Eventually(t, timeout, "the size is 0, and the drain cannot see the Nodes", func(ctx context.Context) error {
		shardGroup, err := env.ShardGroup(ctx, name, shard)
		if err == nil && shardGroup.Spec.Size != 0 {
			err = fmt.Errorf("size is %d", shardGroup.Spec.Size)
		}
		if err != nil {
			return err
		}
		return drainBlocked(ctx, name, "list Nodes")
	})
	expectInstance(t, name, node.Name)
	during, err := env.NstanceMachinePool(t.Context(), idle)
	require.NoError(t, err)
	assert.Equal(t, pool.Spec.ProviderIDList, during.Spec.ProviderIDList, "provider ids stay")

	from := end(t, env.Workload)
	testcluster.Start(t, server)
	untilNoNodes(t, name)
	expectPodDeleted(t, name, "web")
	assert.Contains(t, operatorRequests(t, env.Workload, from), "create pods/eviction", "the Node was drained")
}

// The operator used no right on Nodes and Pods in the management cluster, and none but those
// in the workload cluster. That it lacks none is checked after all tests. This one is the
// last of the file, so that it sees the requests of the others.
func TestRights(t *testing.T) {
	ofNodes := []string{"nodes", "pods", "pods/eviction", "poddisruptionbudgets", "daemonsets", "volumeattachments", "persistentvolumes"}
	for _, request := range operatorRequests(t, env.ControlPlane, 0) {
		_, resource, _ := strings.Cut(request, " ")
		assert.NotContains(t, ofNodes, resource, "%s in the management cluster", request)
	}
	for _, request := range operatorRequests(t, env.Workload, 0) {
		_, resource, _ := strings.Cut(request, " ")
		assert.Contains(t, append(ofNodes, "events"), resource, "%s in the workload cluster", request)
	}
	roles, err := env.Kube.RbacV1().ClusterRoles().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, role := range roles.Items {
		assert.NotEqual(t, "nstance-operator-workload", role.Name, "in the management cluster")
	}
}

// drainBlocked succeeds when the shard group of a pool reports that a drain is blocked by
// something.
func drainBlocked(ctx context.Context, pool, by string) error {
	shardGroup, err := env.ShardGroup(ctx, pool, shard)
	if err != nil {
		return err
	}
	condition := meta.FindStatusCondition(shardGroup.Status.Conditions, v1beta1.ConditionDrainsProgressing)
	if condition == nil || condition.Status != metav1.ConditionFalse || !strings.Contains(condition.Message, by) {
		return fmt.Errorf("condition %+v", condition)
	}
	return nil
}
