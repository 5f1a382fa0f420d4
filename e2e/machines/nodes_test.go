// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machines

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A pool has real Nodes: Pods run on them, kubectl shows their logs, and Nodes are drained
// before their machines are deleted.
func TestPoolOfMachines(t *testing.T) {
	const name = "workers"
	env.CreatePoolForTest(t, name, 0)
	env.Scale(t, name, 3)
	env.UntilRunning(t, name, 3)

	createDeployment(t, name, 3)
	web := pods(t, name)[0]
	assert.Contains(t, env.Kubectl(t, "logs", "--namespace", name, web.Name), "listening at")

	// A second server in the same Pod cannot listen at the port.
	output, err := env.KubectlCommand(t.Context(), "exec", "--namespace", name, web.Name, "--", "/web").CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(output), "address already in use")

	env.Scale(t, name, 0)
	testcluster.Eventually(t, 3*time.Minute, "no Node is left", func(ctx context.Context) error {
		nodes, err := env.Nodes(ctx, name)
		if err == nil && len(nodes) > 0 {
			err = fmt.Errorf("%d Nodes", len(nodes))
		}
		return err
	})
}

// createDeployment creates servers in a namespace of the pool's name, spread over the Nodes
// of the pool, and returns when they serve. One at a time may be evicted.
func createDeployment(t *testing.T, pool string, replicas int32) {
	t.Helper()
	env.CreateNamespace(t, pool)
	labels := map[string]string{"app": "web"}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	deployments := env.Kube.AppsV1().Deployments(pool)
	_, err := deployments.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: selector,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					NodeSelector:                 map[string]string{v1beta1.LabelGroup: pool},
					AutomountServiceAccountToken: ptr.To(false),
					TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
						MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: selector,
					}},
					Containers: []corev1.Container{{
						Name: "web", Image: "localhost/web:1", ImagePullPolicy: corev1.PullNever,
						ReadinessProbe: &corev1.Probe{
							ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(8080)}},
							PeriodSeconds: 1,
						},
					}},
				},
			},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = env.Kube.PolicyV1().PodDisruptionBudgets(pool).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: selector},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, 2*time.Minute, "the Deployment is available", func(ctx context.Context) error {
		deployment, err := deployments.Get(ctx, "web", metav1.GetOptions{})
		if err == nil && deployment.Status.AvailableReplicas != replicas {
			err = fmt.Errorf("%d of %d Pods are available", deployment.Status.AvailableReplicas, replicas)
		}
		return err
	})
}

func pods(t *testing.T, namespace string) []corev1.Pod {
	t.Helper()
	list, err := env.Kube.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	return list.Items
}
