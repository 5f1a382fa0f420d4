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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/pkg/capi"
)

// A Node that is not ready any more is replaced, when there is a health check of
// its pool: that one and in the same shard.
func TestHealthCheck(t *testing.T) {
	const name, replicas = "checked", 3
	watchOperator(t)
	createPool(t, name, replicas)
	before := untilRunning(t, name, replicas)
	createHealthCheck(t, name)
	eventually(t, "all Machines are healthy", func(ctx context.Context) error { return healthy(ctx, name, replicas) })
	victim := before.on(shardIDs[1])[0]
	from := auditEnd(t)
	thaw := freezeKubelets(t)
	setNotReady(t, victim)
	eventually(t, "the Machine is being deleted", func(ctx context.Context) error {
		machines, err := machinesOf(ctx, name)
		for _, machine := range machines {
			if machine.Name == victim && machine.DeletionTimestamp == nil {
				err = fmt.Errorf("it is not, its conditions are %+v", machine.Status.Conditions)
			}
		}
		return err
	})
	thaw()
	untilMachinesGone(t, victim)
	after := untilRunning(t, name, replicas)
	eventually(t, "all Machines are healthy again", func(ctx context.Context) error { return healthy(ctx, name, replicas) })
	untilLookedAgain(t)
	expectReplaced(t, before, after, victim)
	expectInstances(t, name, after)
	expectNodeChanges(t, from, name, 1, victim)
	expectMachinesDeleted(t, from, name, victim)
}

// createHealthCheck has Cluster API look after the Machines of a pool until the
// test ends. One that is unhealthy is remedied at once.
func createHealthCheck(t *testing.T, pool string) {
	t.Helper()
	check := &clusterv1.MachineHealthCheck{
		TypeMeta:   metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "MachineHealthCheck"},
		ObjectMeta: metav1.ObjectMeta{Name: pool},
		Spec: clusterv1.MachineHealthCheckSpec{
			ClusterName: clusterName,
			Selector:    metav1.LabelSelector{MatchLabels: map[string]string{clusterv1.MachinePoolNameLabel: capi.LabelValue(pool)}},
			Checks: clusterv1.MachineHealthCheckChecks{
				UnhealthyNodeConditions: []clusterv1.UnhealthyNodeCondition{
					{Type: corev1.NodeReady, Status: corev1.ConditionFalse, TimeoutSeconds: ptr.To[int32](1)},
				},
			},
		},
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(check)
	if err != nil {
		t.Fatal(err)
	}
	checks := clusterAPI("machinehealthchecks")
	if _, err := checks.Create(t.Context(), &unstructured.Unstructured{Object: content}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := checks.Delete(context.WithoutCancel(t.Context()), pool, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

// healthy succeeds when the health check of a pool finds so many Machines, and
// nothing the matter with them.
func healthy(ctx context.Context, pool string, machines int32) error {
	found, err := clusterAPI("machinehealthchecks").Get(ctx, pool, metav1.GetOptions{})
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

// freezeKubelets has no kubelet report anything until thaw, or until the test
// ends.
func freezeKubelets(t *testing.T) (thaw func()) {
	t.Helper()
	kubelets, frozen := env.Component(controlplane.KWOK), true
	if err := kubelets.Freeze(); err != nil {
		t.Fatal(err)
	}
	thaw = func() {
		if !frozen {
			return
		}
		frozen = false
		if err := kubelets.Thaw(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(thaw)
	return thaw
}

// setNotReady has a kubelet say that its Node is not ready.
func setNotReady(t *testing.T, node string) {
	t.Helper()
	nodes := env.kube.CoreV1().Nodes()
	eventually(t, "Node "+node+" is not ready", func(ctx context.Context) error {
		found, err := nodes.Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		i := slices.IndexFunc(found.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
		if i < 0 {
			return errors.New("it does not say")
		}
		now := metav1.NewTime(time.Now())
		found.Status.Conditions[i] = corev1.NodeCondition{
			Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "made ill by a test",
			LastHeartbeatTime: now, LastTransitionTime: now,
		}
		_, err = nodes.UpdateStatus(ctx, found, metav1.UpdateOptions{})
		return err
	})
}
