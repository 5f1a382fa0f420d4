// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// newNamespace creates a namespace for the Pods of one test. At the end of the test
// it deletes the Pods, and waits until their machines are deleted.
func newNamespace(t *testing.T, name string) {
	t.Helper()
	env.CreateNamespace(t, name)
	t.Cleanup(func() {
		err := env.Kube.CoreV1().Namespaces().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
		assert.NoError(t, err)
		testcluster.EventuallyByProgress(t, 3*time.Minute, "the machines of the Pods of "+name+" are deleted", func(ctx context.Context) (int, error) {
			machines, err := machinesOf(ctx, name)
			if err != nil {
				return math.MinInt, err
			}
			return -len(machines), machineCount(ctx, name, 0)
		})
	})
}

// newPod returns a Pod that requests a machine, and selects the Node of that machine.
func newPod(namespace, name string) *corev1.Pod {
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

func createPod(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	created, err := env.Kube.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	return created
}

// deletePod deletes a Pod and waits until it is deleted.
func deletePod(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	pods := env.Kube.CoreV1().Pods(pod.Namespace)
	require.NoError(t, pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{}))
	testcluster.Eventually(t, time.Minute, "Pod "+pod.Name+" is deleted", func(ctx context.Context) error {
		_, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		return testcluster.NotFound("the Pod", err)
	})
}

// finishPod completes a Pod successfully.
func finishPod(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	_, err := env.Kube.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, mergePatch,
		[]byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status")
	require.NoError(t, err)
}

// runs succeeds when a Pod runs on the Node of its machine, and the Machine is Running
// with that Node.
func runs(ctx context.Context, pod *corev1.Pod) error {
	live, err := env.Kube.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if live.UID != pod.UID || live.Status.Phase != corev1.PodRunning {
		return fmt.Errorf("the Pod is %s (UID %s)", live.Status.Phase, live.UID)
	}
	machine, err := machineOf(ctx, pod)
	if err != nil {
		return err
	}
	if err := machine.running(ctx); err != nil {
		return err
	}
	if live.Spec.NodeName != machine.node {
		return fmt.Errorf("the Pod is on Node %s, its machine is Node %s", live.Spec.NodeName, machine.node)
	}
	node, err := env.Kube.CoreV1().Nodes().Get(ctx, machine.node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if uid := node.Labels[installation.LabelPodUID]; uid != string(pod.UID) {
		return fmt.Errorf("the Node is for Pod %q, want %q", uid, pod.UID)
	}
	return nil
}

// podEvents returns the operator's events about the Pods of a namespace, by the names
// of the Pods.
func podEvents(ctx context.Context, namespace, reason string) (map[string][]eventsv1.Event, error) {
	list, err := env.Kube.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	events := map[string][]eventsv1.Event{}
	for _, event := range list.Items {
		if event.Reason == reason && event.Regarding.Kind == "Pod" {
			events[event.Regarding.Name] = append(events[event.Regarding.Name], event)
		}
	}
	return events, nil
}

// oneEvent succeeds when a Pod has exactly one event of a reason, a warning that is
// not repeated.
func oneEvent(events []eventsv1.Event) error {
	if len(events) != 1 {
		return fmt.Errorf("%d events, want 1", len(events))
	}
	if event := events[0]; event.Series != nil || event.Type != corev1.EventTypeWarning {
		return fmt.Errorf("%s event with series %v", event.Type, event.Series)
	}
	return nil
}
