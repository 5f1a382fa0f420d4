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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
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
	return testcluster.NewOnDemandPod(namespace, name, group)
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

// oneEvent succeeds if there is exactly one event, a warning that is not repeated.
func oneEvent(events []eventsv1.Event) error {
	if len(events) != 1 {
		return fmt.Errorf("%d events, want 1", len(events))
	}
	if event := events[0]; event.Series != nil || event.Type != corev1.EventTypeWarning {
		return fmt.Errorf("%s event with series %v", event.Type, event.Series)
	}
	return nil
}

// object is a JSON object.
type object = map[string]any

// machine has the objects, the instance and the Node of a machine. Unknown fields are empty.
type machine struct {
	// name is the name of the Machine and of the NstanceMachine.
	name string
	// shard and instance identify the instance.
	shard, instance string
	node            string
}

// machinesOf lists the NstanceMachines of the Pods of a namespace.
func machinesOf(ctx context.Context, namespace string) ([]v1beta1.NstanceMachine, error) {
	list, err := env.NstanceMachines().List(ctx, metav1.ListOptions{LabelSelector: v1beta1.LabelPodUID})
	if err != nil {
		return nil, err
	}
	var machines []v1beta1.NstanceMachine
	for _, m := range list.Items {
		if m.Annotations[v1beta1.AnnotationPodNamespace] == namespace {
			machines = append(machines, m)
		}
	}
	return machines, nil
}

// machineCount succeeds when the Pods of a namespace have so many NstanceMachines,
// and as many Machines.
func machineCount(ctx context.Context, namespace string, want int) error {
	nstanceMachines, err := machinesOf(ctx, namespace)
	if err != nil {
		return err
	}
	list, err := env.Machines().List(ctx, metav1.ListOptions{LabelSelector: v1beta1.LabelPodUID})
	if err != nil {
		return err
	}
	machines := 0
	for _, m := range list.Items {
		if m.Annotations[v1beta1.AnnotationPodNamespace] == namespace {
			machines++
		}
	}
	if len(nstanceMachines) != want || machines != want {
		return fmt.Errorf("%d NstanceMachines and %d Machines, want %d", len(nstanceMachines), machines, want)
	}
	return nil
}

// machineOf returns the machine of a Pod, as far as it is known.
func machineOf(ctx context.Context, pod *corev1.Pod) (machine, error) {
	list, err := env.NstanceMachines().List(ctx, metav1.ListOptions{LabelSelector: v1beta1.LabelPodUID + "=" + string(pod.UID)})
	if err != nil {
		return machine{}, err
	}
	if len(list.Items) != 1 {
		return machine{}, fmt.Errorf("%d NstanceMachines for Pod %s, want 1", len(list.Items), pod.Name)
	}
	return getMachine(ctx, list.Items[0].Name)
}

// getMachine reads a machine by its name.
func getMachine(ctx context.Context, name string) (machine, error) {
	nstanceMachine, err := env.NstanceMachines().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return machine{}, err
	}
	m := machine{name: name, shard: nstanceMachine.Status.Shard, instance: nstanceMachine.Status.InstanceID}
	capiMachine, err := env.Machines().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return m, nil
	}
	if err != nil {
		return machine{}, err
	}
	m.node = capiMachine.Status.NodeRef.Name
	return m, nil
}

// running succeeds when a machine runs according to its NstanceMachine, its Machine
// and the shard.
func (m machine) running(ctx context.Context) error {
	nstanceMachine, err := env.NstanceMachines().Get(ctx, m.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if !meta.IsStatusConditionTrue(nstanceMachine.Status.Conditions, v1beta1.ConditionReady) ||
		!ptr.Deref(nstanceMachine.Status.Ready, false) || !ptr.Deref(nstanceMachine.Status.Initialization.Provisioned, false) {
		return fmt.Errorf("the NstanceMachine is not ready: %+v", nstanceMachine.Status)
	}
	capiMachine, err := env.Machines().Get(ctx, m.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if capiMachine.Status.Phase != string(clusterv1.MachinePhaseRunning) || !capiMachine.Status.NodeRef.IsDefined() {
		return fmt.Errorf("the Machine is %s with Node %q", capiMachine.Status.Phase, capiMachine.Status.NodeRef.Name)
	}
	node, err := env.Kube.CoreV1().Nodes().Get(ctx, capiMachine.Status.NodeRef.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if node.Spec.ProviderID != nstanceMachine.Spec.ProviderID || capiMachine.Spec.ProviderID != nstanceMachine.Spec.ProviderID {
		return fmt.Errorf("provider ids: Node %q, Machine %q, NstanceMachine %q",
			node.Spec.ProviderID, capiMachine.Spec.ProviderID, nstanceMachine.Spec.ProviderID)
	}
	state, err := m.state(ctx)
	if err == nil && state != "running" {
		err = fmt.Errorf("instance %s is %s", m.instance, state)
	}
	return err
}

// state returns the status of the instance that the shard's server reports, and "terminated" if it
// has no record of the instance any more.
func (m machine) state(ctx context.Context) (string, error) {
	connection, err := env.Installation.Dial(m.shard)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	response, err := nstancev1.NewOperatorServiceClient(connection).
		GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: m.instance})
	if status.Code(err) == codes.NotFound {
		return "terminated", nil
	}
	return response.GetStatus(), err
}

// deleted succeeds when nothing of a machine that had a shard is left.
func (m machine) deleted(ctx context.Context) error {
	if err := env.MachineDeleted(ctx, m.name, m.instance); err != nil {
		return err
	}
	return m.instanceDeleted(ctx)
}

// instanceDeleted succeeds when the instance of a machine and its Node are deleted.
func (m machine) instanceDeleted(ctx context.Context) error {
	state, err := m.state(ctx)
	if err != nil {
		return err
	}
	if state != "terminated" {
		return fmt.Errorf("instance %s is %s", m.instance, state)
	}
	// A Node of this installation has the name of its instance.
	_, err = env.Kube.CoreV1().Nodes().Get(ctx, m.instance, metav1.GetOptions{})
	return testcluster.NotFound("the Node", err)
}

// deleteOnShard deletes the instance without the operator.
func (m machine) deleteOnShard(t *testing.T) {
	t.Helper()
	connection, err := env.Installation.Dial(m.shard)
	require.NoError(t, err)
	defer connection.Close()
	_, err = nstancev1.NewOperatorServiceClient(connection).
		DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: m.instance})
	require.NoError(t, err)
}

// createMachine creates a Machine and its NstanceMachine, as a user does who wants a single
// instance of the group. An empty instance type is the group's.
func createMachine(t *testing.T, name, instanceType string) {
	t.Helper()
	env.CreateMachine(t, name, group, instanceType)
	t.Cleanup(func() {
		err := env.ClusterAPI("machines").Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
}

// create creates an object of Cluster API.
func create(t *testing.T, resource, kind, name string, spec object) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": clusterv1.GroupVersion.String(),
		"kind":       kind,
		"metadata":   map[string]any{"name": name},
		"spec":       spec,
	}}
	_, err := env.ClusterAPI(resource).Create(t.Context(), object, metav1.CreateOptions{})
	require.NoError(t, err)
}
