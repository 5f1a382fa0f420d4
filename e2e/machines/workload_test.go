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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// webPort is the port of the server in the Pods.
const webPort = 8080

var webLabels = map[string]string{"app": "web"}

// createDeployment creates servers in a namespace of the pool's name, spread over the Nodes of the
// pool, their Service, and a budget: one at a time may be evicted. They are deleted before the
// pool, because the budget would block its drains.
func createDeployment(t *testing.T, pool string, replicas int32) {
	t.Helper()
	env.CreateNamespace(t, pool)
	selector := &metav1.LabelSelector{MatchLabels: webLabels}
	spec := webPod(pool)
	spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: selector,
	}}
	_, err := env.Kube.AppsV1().Deployments(pool).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: selector,
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: webLabels}, Spec: spec},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { deleteDeployment(t, pool) })
	_, err = env.Kube.CoreV1().Services(pool).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: webLabels, Ports: []corev1.ServicePort{{Port: webPort}}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	createBudget(t, pool, 1)
}

// createBudget limits how many of the servers in a namespace may be unavailable.
func createBudget(t *testing.T, namespace string, maxUnavailable int32) {
	t.Helper()
	_, err := env.Kube.PolicyV1().PodDisruptionBudgets(namespace).Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt32(maxUnavailable)), Selector: &metav1.LabelSelector{MatchLabels: webLabels},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
}

// webPod is a server on a Node of a pool.
func webPod(pool string, args ...string) corev1.PodSpec {
	return corev1.PodSpec{
		NodeSelector:                 map[string]string{v1beta1.LabelGroup: pool},
		AutomountServiceAccountToken: ptr.To(false),
		Containers: []corev1.Container{{
			Name: "web", Image: "localhost/web:1", ImagePullPolicy: corev1.PullNever, Args: args,
			ReadinessProbe: &corev1.Probe{
				ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(webPort)}},
				PeriodSeconds: 1,
			},
		}},
	}
}

// scaleDeployment sets how many servers there are.
func scaleDeployment(t *testing.T, pool string, replicas int32) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	_, err := env.Kube.AppsV1().Deployments(pool).Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}, "scale")
	require.NoError(t, err)
}

// untilAvailable waits until so many servers of a pool's Deployment are available.
func untilAvailable(t *testing.T, pool string, replicas int32) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "the Deployment is available", func(ctx context.Context) error {
		deployment, err := env.Kube.AppsV1().Deployments(pool).Get(ctx, "web", metav1.GetOptions{})
		if err == nil && deployment.Status.AvailableReplicas != replicas {
			err = fmt.Errorf("%d of %d Pods are available", deployment.Status.AvailableReplicas, replicas)
		}
		return err
	})
}

// untilPodReady waits until a Pod is ready, and returns it.
func untilPodReady(t *testing.T, namespace, name string) (pod *corev1.Pod) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "Pod "+name+" is ready", func(ctx context.Context) (err error) {
		if pod, err = env.Kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("status %+v", pod.Status)
	})
	return pod
}

// deleteDeployment deletes the servers of a pool, and returns when their Pods are deleted.
func deleteDeployment(t *testing.T, pool string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	assert.NoError(t, env.Kube.AppsV1().Deployments(pool).Delete(ctx, "web", metav1.DeleteOptions{}))
	// A Node may be drained and deleted after the containers of a Pod have terminated and before
	// its kubelet deletes the Pod. kube-controller-manager deletes it after a minute
	// (https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-garbage-collection).
	env.UntilNoPods(t, 3*time.Minute, pool)
}

func pods(ctx context.Context, t *testing.T, namespace string) []corev1.Pod {
	t.Helper()
	list, err := env.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	return list.Items
}

// untilScaledToZero scales a pool to zero, and returns when no Node is left.
func untilScaledToZero(t *testing.T, pool string) {
	t.Helper()
	env.Scale(t, pool, 0)
	env.UntilNoNodes(t, 3*time.Minute, pool)
}
