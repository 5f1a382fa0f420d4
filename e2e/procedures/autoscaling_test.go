// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package procedures

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

const (
	// oldLabel is on the Nodes of the old group.
	oldLabel, oldGroup = "eks.amazonaws.com/nodegroup", "old-workers"
	// moving is the namespace and the Deployment of the Pods that move.
	moving = "moving"
)

// Pods move from the Nodes of an auto-scaling group, for which plain Nodes stand in, to the Nodes
// of a new pool. Each Pod is evicted once, as a disruption budget allows, and the operator neither
// changes nor deletes an old Node.
func TestMoveFromAutoScalingGroups(t *testing.T) {
	testcluster.SkipUnlessFull(t)
	const pool, bystander, replicas = "successor", "bystander", 4
	createPool(t, bystander, v1beta1.MachineModeNever, 2, env.ShardIDs...)
	old := createOldNodes(t, 3)
	deployMoving(t, 6)
	before := nodes(t)
	losses, from := env.NewLossChecker(t, bystander), env.AuditEnd(t)

	p := env.StartProcedure(t, "Move from cloud auto-scaling groups", map[string]string{
		"NAMESPACE": installation.Namespace,
		"CLUSTER":   installation.ClusterName,
		"OLD":       oldLabel + "=" + oldGroup,
		"POOL":      pool,
		"TEMPLATE":  "worker",
		"SHARDS":    fmt.Sprintf("[%q,%q]", env.ShardIDs[0], env.ShardIDs[1]),
		"REPLICAS":  fmt.Sprint(replicas),
	})
	p.Do("Stop what scales the old group", func() {})
	t.Cleanup(func() { env.DeletePools(t, pool) })
	p.Run("Create the pool")
	p.Run("Scale the pool up")
	env.UntilRunning(t, pool, replicas)
	p.Run("Keep new Pods from the old Nodes")
	p.Run("Drain the old Nodes one after the other")
	untilMoved(t, pool, 6)
	p.Do("Set the old group to zero", func() { deleteNodes(t, old...) })
	p.Run("Check that no old Node is left")

	env.UntilRunning(t, pool, replicas)
	for name, node := range nodes(t) {
		assert.NotEqual(t, oldGroup, node.Labels[oldLabel], "Node %s", name)
	}
	evicted := env.Writes(t, from, func(r controlplane.Request) bool {
		return r.Namespace == moving && r.Subresource == "eviction" && r.Code == http.StatusCreated
	})
	assert.Len(t, evicted, 6, "evicted Pods: %s", testcluster.Describe(evicted))
	byOperator := env.Writes(t, from, testcluster.ByOperator, func(r controlplane.Request) bool {
		return r.Resource == "nodes" && slices.Contains(old, r.Name)
	})
	assert.Empty(t, byOperator, "the operator's writes of old Nodes: %s", testcluster.Describe(byOperator))
	for _, name := range old {
		delete(before, name)
	}
	expectKept(t, before, "", "")
	deleted := env.Requests(t, from, testcluster.IsDeletion, func(r controlplane.Request) bool { return !slices.Contains(old, r.Name) })
	assert.Empty(t, deleted, "deletions: %s", testcluster.Describe(deleted))
	env.Scale(t, pool, replicas+2)
	env.UntilRunning(t, pool, replicas+2)
	expectUntouched(t, losses)
}

// createOldNodes creates Ready Nodes outside of any pool, and returns their names.
func createOldNodes(t *testing.T, count int) []string {
	t.Helper()
	var names []string
	for i := range count {
		resources := corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("100"),
		}
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("old-%d", i), Labels: map[string]string{oldLabel: oldGroup}},
			Spec:       corev1.NodeSpec{ProviderID: fmt.Sprintf("aws:///us-west-2a/i-%d", i)},
			Status:     corev1.NodeStatus{Allocatable: resources, Capacity: resources},
		}
		_, err := env.Kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
		require.NoError(t, err)
		names = append(names, node.Name)
	}
	t.Cleanup(func() { deleteNodes(t, names...) })
	testcluster.Eventually(t, time.Minute, "the old Nodes are ready", func(ctx context.Context) error {
		now, err := listNodes(ctx)
		for _, name := range names {
			if err == nil && !testcluster.IsReady(now[name]) {
				err = fmt.Errorf("%s is not ready", name)
			}
		}
		return err
	})
	return names
}

// deleteNodes deletes Nodes that exist, as a cloud does with the Nodes of its instances.
func deleteNodes(t *testing.T, names ...string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	for _, name := range names {
		if err := env.Kube.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			require.NoError(t, testcluster.NotFound("Node "+name, err))
		}
	}
}

// deployMoving runs Pods on the old Nodes, of which one at a time may be evicted.
func deployMoving(t *testing.T, count int32) {
	t.Helper()
	env.CreateNamespace(t, moving)
	t.Cleanup(func() {
		background := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
		assert.NoError(t, env.Kube.AppsV1().Deployments(moving).Delete(context.WithoutCancel(t.Context()), moving, background))
		testcluster.Eventually(t, 3*time.Minute, "the Pods are deleted", func(ctx context.Context) error {
			return runOn(ctx, 0, func(string) bool { return true })
		})
	})
	labels := map[string]string{"app": moving}
	// The Pods start on old Nodes, because the Nodes of the pools are cordoned until they run.
	cordoned := cordonOthers(t)
	_, err := env.Kube.AppsV1().Deployments(moving).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: moving},
		Spec: appsv1.DeploymentSpec{
			Replicas: &count, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					AutomountServiceAccountToken: ptr.To(false),
					Containers:                   []corev1.Container{{Name: "main", Image: "none"}},
				},
			},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = env.Kube.PolicyV1().PodDisruptionBudgets(moving).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: moving},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, time.Minute, "the Pods run on old Nodes", func(ctx context.Context) error {
		return runOn(ctx, count, func(node string) bool { return strings.HasPrefix(node, "old-") })
	})
	env.Kubectl(t, append([]string{"uncordon"}, cordoned...)...)
}

// cordonOthers cordons all Nodes but the old Nodes, and returns their names.
func cordonOthers(t *testing.T) []string {
	t.Helper()
	var names []string
	for name, node := range nodes(t) {
		if node.Labels[oldLabel] == "" {
			names = append(names, name)
		}
	}
	env.Kubectl(t, append([]string{"cordon"}, names...)...)
	return names
}

// untilMoved waits until the Pods run on other Nodes than the old Nodes, and some run on Nodes of
// the pool.
func untilMoved(t *testing.T, pool string, count int32) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "the Pods have moved", func(ctx context.Context) error {
		return runOn(ctx, count, func(node string) bool { return !strings.HasPrefix(node, "old-") })
	})
	onPool := 0
	ready, err := env.Nodes(t.Context(), pool)
	require.NoError(t, err)
	pods, err := env.Kube.CoreV1().Pods(moving).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	for _, pod := range pods.Items {
		if slices.ContainsFunc(ready, func(n corev1.Node) bool { return n.Name == pod.Spec.NodeName }) {
			onPool++
		}
	}
	assert.NotZero(t, onPool, "Pods on Nodes of the pool")
}

// runOn succeeds when so many Pods run, all of them on Nodes for which wanted returns true.
func runOn(ctx context.Context, count int32, wanted func(node string) bool) error {
	pods, err := env.Kube.CoreV1().Pods(moving).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	running := int32(0)
	for _, pod := range pods.Items {
		if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil && wanted(pod.Spec.NodeName) {
			running++
		}
	}
	if running != count || len(pods.Items) != int(count) {
		return fmt.Errorf("%d of %d Pods run on wanted Nodes, want %d", running, len(pods.Items), count)
	}
	return nil
}
