// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/testcluster"
)

// testFinalizer is a finalizer that only a test removes.
const testFinalizer = "test.nstance.dev/keep"

// newPod returns a Pod that is bound to a Node and that no controller replaces. Its
// label "app" is its name.
func newPod(namespace, name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}},
		Spec:       podSpec(node),
	}
}

// podSpec is that of a Pod that is bound to a Node, or with "" has to be scheduled.
func podSpec(node string) corev1.PodSpec {
	return corev1.PodSpec{
		NodeName:                     node,
		AutomountServiceAccountToken: ptr.To(false),
		Containers:                   []corev1.Container{{Name: "main", Image: "registry.k8s.io/pause:3.10"}},
	}
}

// createPods creates Pods and returns when they all run.
func createPods(t testing.TB, pods ...*corev1.Pod) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(8)
	for _, pod := range pods {
		group.Go(func() error {
			_, err := env.Kube.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
			return err
		})
	}
	require.NoError(t, group.Wait())
	testcluster.Eventually(t, timeout, "the Pods run", func(ctx context.Context) error {
		list, err := env.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, pod := range pods {
			if !slices.ContainsFunc(list.Items, func(p corev1.Pod) bool {
				return p.Namespace == pod.Namespace && p.Name == pod.Name && p.Status.Phase == corev1.PodRunning
			}) {
				return fmt.Errorf("Pod %s/%s does not run", pod.Namespace, pod.Name)
			}
		}
		return nil
	})
}

// budgetOf is the name of the budget of one Pod.
func budgetOf(pod string) string { return "keep-" + pod }

// protect creates a budget that allows no eviction of the Pod of that name, and
// returns when it is in force.
func protect(t testing.TB, namespace, pod string) {
	t.Helper()
	createBudget(t, namespace, budgetOf(pod), policyv1.PodDisruptionBudgetSpec{
		MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: selector(pod),
	}, 0)
}

// createBudget returns when a budget of that name allows so many disruptions.
func createBudget(t testing.TB, namespace, name string, spec policyv1.PodDisruptionBudgetSpec, allowed int32) {
	t.Helper()
	budgets := env.Kube.PolicyV1().PodDisruptionBudgets(namespace)
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	_, err := budgets.Create(t.Context(), budget, metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, timeout, "budget "+name+" is in force", func(ctx context.Context) error {
		found, err := budgets.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if found.Status.ObservedGeneration != found.Generation || found.Status.CurrentHealthy < found.Status.DesiredHealthy ||
			found.Status.ExpectedPods == 0 || found.Status.DisruptionsAllowed != allowed {
			return fmt.Errorf("status %+v", found.Status)
		}
		return nil
	})
}

// unprotect changes the budget of a Pod so that it may be evicted.
func unprotect(t testing.TB, namespace, pod string) {
	t.Helper()
	_, err := env.Kube.PolicyV1().PodDisruptionBudgets(namespace).
		Patch(t.Context(), budgetOf(pod), types.MergePatchType, []byte(`{"spec":{"minAvailable":0}}`), metav1.PatchOptions{})
	require.NoError(t, err)
}

// podsOn lists the Pods of a Node.
func podsOn(ctx context.Context, node string) ([]corev1.Pod, error) {
	list, err := env.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// evictable reports whether a drain has to wait until a Pod is deleted. It does not
// wait for Pods that belong to the Node, and for completed Pods.
func evictable(pod *corev1.Pod) bool {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return false
	}
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "DaemonSet" {
		return false
	}
	return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}
