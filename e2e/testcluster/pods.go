// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// NewOnDemandPod returns a Pod that requests a machine of a group, and selects the Node of
// that machine.
func NewOnDemandPod(namespace, name, group string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   namespace,
			Name:        name,
			Annotations: map[string]string{v1beta1.AnnotationOnDemandGroup: group},
		},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{
				installation.LabelPodNamespace: namespace,
				installation.LabelPodName:      name,
			},
			AutomountServiceAccountToken: ptr.To(false),
			Containers:                   []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
}

// NewUnrelatedPod returns a Pod that the operator ignores, for benchmarks that need many of
// them. The caller sets its Node or its scheduler.
func NewUnrelatedPod(name string, i int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:   fmt.Sprintf("%s-%d", name, i),
			Labels: map[string]string{"app.kubernetes.io/name": "bystander", "app.kubernetes.io/instance": fmt.Sprint(i)},
		},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/bystander:1.0.0"}}},
	}
}

// CreatePods creates Pods and returns when they all run.
func (c Clients) CreatePods(t testing.TB, timeout time.Duration, pods ...*corev1.Pod) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(8)
	for _, pod := range pods {
		group.Go(func() error {
			_, err := c.NodeKube.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
			return err
		})
	}
	require.NoError(t, group.Wait())
	Eventually(t, timeout, "the Pods run", func(ctx context.Context) error {
		list, err := c.NodeKube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, pod := range pods {
			if !slices.ContainsFunc(list.Items, func(p corev1.Pod) bool {
				return p.Namespace == pod.Namespace && p.Name == pod.Name && p.Status.Phase == corev1.PodRunning
			}) {
				return fmt.Errorf("the Pod %s/%s does not run", pod.Namespace, pod.Name)
			}
		}
		return nil
	})
}

// PodsOn lists the Pods of a Node.
func (c Clients) PodsOn(ctx context.Context, node string) ([]corev1.Pod, error) {
	list, err := c.NodeKube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list the Pods on Node %s: %w", node, err)
	}
	return list.Items, nil
}

// HasExited reports whether the containers of a Pod have exited and are not started again.
func HasExited(pod corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// UntilNoPods waits until all Pods of a namespace are deleted.
func (c Clients) UntilNoPods(t testing.TB, timeout time.Duration, namespace string) {
	t.Helper()
	Eventually(t, timeout, "the Pods of namespace "+namespace+" are deleted", func(ctx context.Context) error {
		list, err := c.NodeKube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d Pods are left", len(list.Items))
		}
		return err
	})
}

// UntilNoNodes waits until all Nodes of a group are deleted.
func (c Clients) UntilNoNodes(t testing.TB, timeout time.Duration, group string) {
	t.Helper()
	Eventually(t, timeout, "the Nodes of group "+group+" are deleted", func(ctx context.Context) error {
		nodes, err := c.Nodes(ctx, group)
		if err == nil && len(nodes) > 0 {
			err = fmt.Errorf("%d Nodes are left", len(nodes))
		}
		return err
	})
}

// NodeNames returns the names of the Nodes of a group.
func (c Clients) NodeNames(t testing.TB, group string) (names []string) {
	t.Helper()
	nodes, err := c.Nodes(t.Context(), group)
	require.NoError(t, err)
	for _, node := range nodes {
		names = append(names, node.Name)
	}
	return names
}
