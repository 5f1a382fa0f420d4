// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// The second operator of the cluster, for another tenant of the same shards.
const (
	otherNamespace = "nstance-other"
	otherTenant    = "other"
	otherCluster   = installation.ClusterID + "--" + otherTenant
	otherUser      = "system:serviceaccount:" + otherNamespace + ":nstance-operator"
)

// Two operators in one cluster serve two tenants, whose groups may have the same name. Each works
// in its own namespace, and serves the Pods that name its cluster.
func TestTwoOperators(t *testing.T) {
	watchOperator(t)
	from := env.AuditEnd(t)
	second, err := env.Installation.InstallSecond(t.Context(), otherNamespace, otherTenant)
	require.NoError(t, err)
	operator, err := second.StartOperator(t.Context(), installation.Operator{Component: "operator-other", Flags: []string{"--on-demand-namespaces=*"}})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, env.Component(operator.Component).Stop(context.WithoutCancel(t.Context()))) })

	createOtherPool(t, 2)
	testcluster.Eventually(t, 2*time.Minute, "the pool of the other tenant runs", func(ctx context.Context) error {
		return otherPoolRuns(ctx, 2)
	})
	for _, shard := range shardIDs {
		group, err := env.Group(t.Context(), shard, group)
		require.NoError(t, err)
		assert.Zero(t, group.GetSize(), "the group of the first tenant on shard %s", shard)
	}
	expectOtherWebhook(t)

	newNamespace(t, "shared")
	pods := map[string]*corev1.Pod{}
	for cluster, namespace := range map[string]string{installation.ClusterName: installation.Namespace, otherCluster: otherNamespace} {
		pod := newPod("shared", "pod-in-"+namespace)
		pod.Annotations[v1beta1.AnnotationOnDemandCluster] = cluster
		pods[namespace] = createPod(t, pod)
	}
	for namespace, pod := range pods {
		testcluster.Eventually(t, 2*time.Minute, "Pod "+pod.Name+" runs", func(ctx context.Context) error {
			live, err := env.Kube.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
			if err == nil && live.Status.Phase != corev1.PodRunning {
				err = fmt.Errorf("it is %s", live.Status.Phase)
			}
			return err
		})
		machines, err := env.Nstance.InfrastructureV1beta1().NstanceMachines("").List(t.Context(),
			metav1.ListOptions{LabelSelector: v1beta1.LabelPodUID + "=" + string(pod.UID)})
		require.NoError(t, err)
		if assert.Len(t, machines.Items, 1) {
			assert.Equal(t, namespace, machines.Items[0].Namespace)
		}
		deletePod(t, pod)
	}

	deleteOtherPool(t)
	for user, namespace := range map[string]string{installation.OperatorUser: installation.Namespace, otherUser: otherNamespace} {
		strange := env.Writes(t, from, func(r controlplane.Request) bool {
			// Events in a namespace that is being deleted are forbidden for another reason.
			return r.User == user && (r.Code == http.StatusForbidden && r.Reason == "" ||
				r.Namespace != "" && r.Namespace != namespace && r.Resource != "events")
		})
		assert.Empty(t, strange, "requests of %s:%s", user, testcluster.Describe(strange))
	}
}

// createOtherPool creates a pool with the name of the group of the first tenant.
func createOtherPool(t *testing.T, replicas int32) {
	t.Helper()
	machinePool := testcluster.NewMachinePool(group, replicas)
	machinePool.Namespace, machinePool.Spec.ClusterName = otherNamespace, otherCluster
	machinePool.Spec.Template.Spec.ClusterName = otherCluster
	_, err := env.CAPI.MachinePools(otherNamespace).Create(t.Context(), machinePool, metav1.CreateOptions{})
	require.NoError(t, err)
	pool := testcluster.NewNstanceMachinePool(group, shardIDs...)
	pool.Namespace, pool.Spec.Template = otherNamespace, installation.OnDemandTemplate
	_, err = env.Nstance.InfrastructureV1beta1().NstanceMachinePools(otherNamespace).Create(t.Context(), pool, metav1.CreateOptions{})
	require.NoError(t, err)
}

func otherPoolRuns(ctx context.Context, replicas int32) error {
	pool, err := env.Nstance.InfrastructureV1beta1().NstanceMachinePools(otherNamespace).Get(ctx, group, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if testcluster.Settled(pool) != nil || ptr.Deref(pool.Status.Replicas, -1) != replicas {
		return fmt.Errorf("status %+v", pool.Status)
	}
	return nil
}

// expectOtherWebhook waits until the webhook of the other operator rejects a second pool
// of the group in its namespace.
func expectOtherWebhook(t *testing.T) {
	t.Helper()
	pool := testcluster.NewNstanceMachinePool("another", shardIDs...)
	pool.Namespace, pool.Spec.Group = otherNamespace, group
	testcluster.Eventually(t, time.Minute, "the webhook rejects a second pool of the group", func(ctx context.Context) error {
		_, err := env.Nstance.InfrastructureV1beta1().NstanceMachinePools(otherNamespace).
			Create(ctx, pool, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return fmt.Errorf("it was accepted")
		}
		return nil
	})
}

func deleteOtherPool(t *testing.T) {
	t.Helper()
	pools := env.Nstance.InfrastructureV1beta1().NstanceMachinePools(otherNamespace)
	require.NoError(t, env.CAPI.MachinePools(otherNamespace).Delete(t.Context(), group, metav1.DeleteOptions{}))
	testcluster.Eventually(t, 2*time.Minute, "the pool of the other tenant is deleted", func(ctx context.Context) error {
		_, err := pools.Get(ctx, group, metav1.GetOptions{})
		return testcluster.NotFound("the pool", err)
	})
}
