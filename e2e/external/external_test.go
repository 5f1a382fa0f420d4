// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package external

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// The workload cluster can be reached.
func TestReachable(t *testing.T) {
	t.Run("Scale", testScale)
	t.Run("Drain", testDrain)
	t.Run("Pod", testPodGetsAMachine)
	t.Run("Tokens", testTokensAreRenewed)
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

// An instance is deleted when its Node in the workload cluster has no Pods any more, and not
// before.
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
	env.UntilNoNodes(t, timeout, name)
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

// While the workload cluster is not reachable, sizes change and no drain is acknowledged: a Node
// that the operator cannot read may exist. An operator that starts in this time does the same.
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
	env.UntilNoNodes(t, timeout, name)
	expectPodDeleted(t, name, "web")
	assert.Contains(t, operatorRequests(t, env.Workload, from), "create pods/eviction", "the Node was drained")
}

// The operator used no right on Nodes and Pods in the management cluster, and no other right in
// the workload cluster. Main checks after all tests that it lacks no right. This test is the last
// of the file, so that it sees the requests of the other tests.
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

// drainBlocked succeeds when the shard group of a pool reports a blocked drain with a message that
// contains by.
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

// newPod returns a Pod on a Node, or a Pod to schedule if node is "".
func newPod(namespace, name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": namespace}},
		Spec: corev1.PodSpec{
			NodeName:                     node,
			AutomountServiceAccountToken: ptr.To(false),
			Containers:                   []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
}

// createPod creates a Pod in the workload cluster, and waits until it runs if it has a Node.
func createPod(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	pods := env.NodeKube.CoreV1().Pods(pod.Namespace)
	created, err := pods.Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	if pod.Spec.NodeName == "" {
		return created
	}
	testcluster.Eventually(t, timeout, "Pod "+pod.Name+" runs", func(ctx context.Context) error {
		running, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && running.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("it is %s", running.Status.Phase)
		}
		return err
	})
	return created
}

// protect creates a budget that allows no eviction of the Pods of a namespace.
func protect(t *testing.T, namespace string) {
	t.Helper()
	budgets := env.NodeKube.PolicyV1().PodDisruptionBudgets(namespace)
	_, err := budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt32(0)),
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": namespace}},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, timeout, "the budget is in force", func(ctx context.Context) error {
		budget, err := budgets.Get(ctx, namespace, metav1.GetOptions{})
		if err == nil && budget.Status.ObservedGeneration != budget.Generation {
			err = fmt.Errorf("status %+v", budget.Status)
		}
		return err
	})
}

func unprotect(t *testing.T, namespace string) {
	t.Helper()
	require.NoError(t, env.NodeKube.PolicyV1().PodDisruptionBudgets(namespace).Delete(t.Context(), namespace, metav1.DeleteOptions{}))
}

// onlyNode returns the only Node of a group.
func onlyNode(t *testing.T, name string) corev1.Node {
	t.Helper()
	nodes, err := env.Nodes(t.Context(), name)
	require.NoError(t, err)
	require.Len(t, nodes, 1)
	return nodes[0]
}

// expectInstance fails unless the shard has the instance of a group and has not begun to
// delete it.
func expectInstance(t *testing.T, name, instance string) {
	t.Helper()
	reported, err := env.Group(t.Context(), shard, name)
	require.NoError(t, err)
	require.NotNil(t, reported)
	require.True(t, slices.ContainsFunc(reported.GetInstances().GetInstances(), func(i *nstancev1.ManagedInstance) bool {
		return i.GetId() == instance && !strings.Contains(strings.ToLower(i.GetStatus()), "terminat")
	}), "the shard has %v, want %s", reported.GetInstances(), instance)
}

func expectPodDeleted(t *testing.T, namespace, name string) {
	t.Helper()
	testcluster.Eventually(t, timeout, "the Pod is deleted", func(ctx context.Context) error {
		_, err := env.NodeKube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		return testcluster.NotFound("the Pod", err)
	})
}

// countEvents returns the number of events of a reason about a Node in the workload cluster.
func countEvents(ctx context.Context, node, reason string) (int, error) {
	list, err := env.NodeKube.EventsV1().Events("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	count := 0
	for _, event := range list.Items {
		if event.Regarding.Name == node && event.Reason == reason {
			count++
		}
	}
	return count, nil
}

// end returns the present end of the audit log of a control plane.
func end(t *testing.T, cp *controlplane.ControlPlane) controlplane.Position {
	t.Helper()
	position, err := cp.AuditLog().End()
	require.NoError(t, err)
	return position
}

// operatorRequests returns the requests of the operator to a control plane since a position,
// such as "create pods/eviction", each once.
func operatorRequests(t *testing.T, cp *controlplane.ControlPlane, from controlplane.Position) []string {
	t.Helper()
	requests, err := cp.AuditLog().Requests(from, func(r controlplane.Request) bool { return r.User == installation.OperatorUser })
	require.NoError(t, err)
	var found []string
	for _, r := range requests {
		if resource := r.Resource; resource != "" {
			if r.Subresource != "" {
				resource += "/" + r.Subresource
			}
			found = append(found, r.Verb+" "+resource)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}
