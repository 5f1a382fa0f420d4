// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// newNamespace makes a namespace for the Pods of one test, and at the end of the
// test removes the Pods, and waits until their machines are gone.
func newNamespace(t *testing.T, name string) {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := env.kube.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "Pods can be made in "+name, func(ctx context.Context) error {
		_, err := env.kube.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	t.Cleanup(func() {
		err := env.kube.CoreV1().Namespaces().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
		if err != nil {
			t.Error(err)
		}
		eventually(t, 3*time.Minute, "no machine is left of the Pods of "+name, func(ctx context.Context) error {
			return machineCount(ctx, name, 0)
		})
	})
}

// newPod is a Pod that asks for a machine, and selects the Node that the machine
// is going to be.
func newPod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   namespace,
			Name:        name,
			Annotations: map[string]string{v1beta1.AnnotationOnDemandGroup: group},
		},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{
				nstance.LabelPodNamespace: namespace,
				nstance.LabelPodName:      name,
			},
			AutomountServiceAccountToken: ptr.To(false),
			Containers:                   []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
}

func createPod(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	made, err := env.kube.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// deletePod deletes a Pod and waits until it is gone.
func deletePod(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	pods := env.kube.CoreV1().Pods(pod.Namespace)
	if err := pods.Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "Pod "+pod.Name+" is gone", func(ctx context.Context) error {
		_, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
}

// finishPod has a Pod end successfully.
func finishPod(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	_, err := env.kube.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, mergePatch,
		[]byte(`{"status":{"phase":"Succeeded"}}`), metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
}

// runs succeeds when a Pod runs on the Node that was made for it, and its Machine
// is Running with that Node.
func runs(ctx context.Context, pod *corev1.Pod) error {
	live, err := env.kube.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
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
	node, err := env.kube.CoreV1().Nodes().Get(ctx, machine.node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if uid := node.Labels[nstance.LabelPodUID]; uid != string(pod.UID) {
		return fmt.Errorf("the Node is for Pod %q, want %q", uid, pod.UID)
	}
	return nil
}

// podEvents are the operator's events about the Pods of a namespace, by the names
// of the Pods.
func podEvents(ctx context.Context, namespace, reason string) (map[string][]eventsv1.Event, error) {
	list, err := env.kube.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{})
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

// oneEvent succeeds when a Pod has exactly one event of a reason, which is not
// repeated and contains the text.
func oneEvent(events []eventsv1.Event) error {
	if len(events) != 1 {
		return fmt.Errorf("%d events, want 1", len(events))
	}
	if event := events[0]; event.Series != nil || event.Type != corev1.EventTypeWarning {
		return fmt.Errorf("%s event with series %v", event.Type, event.Series)
	}
	return nil
}
