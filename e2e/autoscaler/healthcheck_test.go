// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/base/capi"
)

// With a health check of its pool, only a Node that is not ready any more is replaced,
// in the same shard.
func TestHealthCheck(t *testing.T) {
	const name, replicas = "checked", 3
	watchOperator(t)
	createPool(t, name, replicas)
	before := untilRunning(t, name, replicas)
	createHealthCheck(t, name)
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

// createHealthCheck creates a MachineHealthCheck of a pool until the end of the test.
// An unhealthy Machine is replaced at once.
func createHealthCheck(t *testing.T, pool string) {
	t.Helper()
	check := &clusterv1.MachineHealthCheck{
		TypeMeta:   metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachineHealthCheck"},
		ObjectMeta: metav1.ObjectMeta{Name: pool},
		Spec: clusterv1.MachineHealthCheckSpec{
			ClusterName: installation.ClusterName,
			Selector:    metav1.LabelSelector{MatchLabels: map[string]string{clusterv1.MachinePoolNameLabel: capi.LabelValue(pool)}},
			Checks: clusterv1.MachineHealthCheckChecks{
				UnhealthyNodeConditions: []clusterv1.UnhealthyNodeCondition{
					{Type: corev1.NodeReady, Status: corev1.ConditionFalse, TimeoutSeconds: ptr.To[int32](1)},
				},
			},
		},
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(check)
	require.NoError(t, err)
	checks := env.ClusterAPI("machinehealthchecks")
	_, err = checks.Create(t.Context(), &unstructured.Unstructured{Object: content}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, checks.Delete(context.WithoutCancel(t.Context()), pool, metav1.DeleteOptions{}))
	})
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
