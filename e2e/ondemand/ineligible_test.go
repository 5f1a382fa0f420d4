// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A DaemonSet whose Pods have the annotation creates no machines, and neither does a Pod
// that gets it when it runs. With a machine for each Pod there would be another Pod of the
// DaemonSet on each, and no end.
func TestPodsThatNeedNoMachine(t *testing.T) {
	t.Parallel()
	const namespace, nodes, name = "ineligible", 3, "logs"
	watchOperator(t)
	newNamespace(t, namespace)
	var builders []*corev1.Pod
	for i := range nodes {
		builders = append(builders, createPod(t, newPod(namespace, fmt.Sprintf("builder-%d", i))))
	}
	var node string
	for _, builder := range builders {
		node = untilRuns(t, builder).node
	}

	labels := map[string]string{"app": name}
	_, err := env.Kube.AppsV1().DaemonSets(namespace).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{v1beta1.AnnotationOnDemandGroup: group}},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{installation.LabelPodNamespace: namespace},
					Containers:   []corev1.Container{{Name: "main", Image: "none"}},
				},
			},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, time.Minute, "each Pod of the DaemonSet has an event", func(ctx context.Context) error {
		events, err := podEvents(ctx, namespace, "InvalidAnnotation")
		if err != nil {
			return err
		}
		for pod, about := range events {
			if err := oneEvent(about); err != nil {
				return fmt.Errorf("pod %s: %w", pod, err)
			}
		}
		if len(events) != nodes {
			return fmt.Errorf("%d Pods have events, want %d", len(events), nodes)
		}
		return nil
	})

	running := newPod(namespace, "running")
	running.Annotations = nil
	running.Spec.NodeSelector = nil
	running.Spec.NodeName = node
	running = createPod(t, running)
	_, err = env.Kube.CoreV1().Pods(namespace).Patch(t.Context(), running.Name, mergePatch,
		fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, v1beta1.AnnotationOnDemandGroup, group), metav1.PatchOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, time.Minute, "the running Pod has an event", func(ctx context.Context) error {
		events, err := podEvents(ctx, namespace, "AlreadyBound")
		if err == nil && len(events["running"]) != 1 {
			err = fmt.Errorf("%d events, want 1", len(events["running"]))
		}
		return err
	})
	assert.NoError(t, machineCount(t.Context(), namespace, nodes))
}
