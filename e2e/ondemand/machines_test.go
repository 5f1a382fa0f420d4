// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	infrastructureclient "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

const mergePatch = types.MergePatchType

// object is a JSON object.
type object = map[string]any

// machine is one machine in all the places where there is something of it. What
// is not known is empty.
type machine struct {
	// name is that of the Machine and of the NstanceMachine.
	name string
	// shard and instance are where and what the shard's server made.
	shard, instance string
	node            string
}

func nstanceMachines() infrastructureclient.NstanceMachineInterface {
	return env.nstance.InfrastructureV1beta1().NstanceMachines(nstance.Namespace)
}

func clusterAPI(resource string) dynamic.ResourceInterface {
	return env.dynamic.Resource(clusterv1.GroupVersion.WithResource(resource)).Namespace(nstance.Namespace)
}

// machinesOf lists the machines that were made for the Pods of a namespace.
func machinesOf(ctx context.Context, namespace string) ([]v1beta1.NstanceMachine, error) {
	list, err := nstanceMachines().List(ctx, metav1.ListOptions{LabelSelector: v1beta1.LabelPodUID})
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

// machineCount succeeds when so many NstanceMachines, and so many Machines, are
// there for the Pods of a namespace.
func machineCount(ctx context.Context, namespace string, want int) error {
	ours, err := machinesOf(ctx, namespace)
	if err != nil {
		return err
	}
	list, err := env.capi.Machines(nstance.Namespace).List(ctx, metav1.ListOptions{LabelSelector: v1beta1.LabelPodUID})
	if err != nil {
		return err
	}
	theirs := 0
	for _, m := range list.Items {
		if m.Annotations[v1beta1.AnnotationPodNamespace] == namespace {
			theirs++
		}
	}
	if len(ours) != want || theirs != want {
		return fmt.Errorf("%d NstanceMachines and %d Machines, want %d", len(ours), theirs, want)
	}
	return nil
}

// machineOf is the machine of a Pod, as far as it is known.
func machineOf(ctx context.Context, pod *corev1.Pod) (machine, error) {
	list, err := nstanceMachines().List(ctx, metav1.ListOptions{LabelSelector: v1beta1.LabelPodUID + "=" + string(pod.UID)})
	if err != nil {
		return machine{}, err
	}
	if len(list.Items) != 1 {
		return machine{}, fmt.Errorf("%d NstanceMachines for Pod %s, want 1", len(list.Items), pod.Name)
	}
	return getMachine(ctx, list.Items[0].Name)
}

// getMachine looks up what is known of a machine.
func getMachine(ctx context.Context, name string) (machine, error) {
	ours, err := nstanceMachines().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return machine{}, err
	}
	m := machine{name: name, shard: ours.Status.Shard, instance: ours.Status.InstanceID}
	theirs, err := env.capi.Machines(nstance.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return m, nil
	}
	if err != nil {
		return machine{}, err
	}
	m.node = theirs.Status.NodeRef.Name
	return m, nil
}

// running succeeds when everybody agrees that a machine runs: our object, Cluster
// API's, and the shard.
func (m machine) running(ctx context.Context) error {
	ours, err := nstanceMachines().Get(ctx, m.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if !meta.IsStatusConditionTrue(ours.Status.Conditions, v1beta1.ConditionReady) ||
		!ptr.Deref(ours.Status.Ready, false) || !ptr.Deref(ours.Status.Initialization.Provisioned, false) {
		return fmt.Errorf("the NstanceMachine is not ready: %+v", ours.Status)
	}
	theirs, err := env.capi.Machines(nstance.Namespace).Get(ctx, m.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if theirs.Status.Phase != string(clusterv1.MachinePhaseRunning) || !theirs.Status.NodeRef.IsDefined() {
		return fmt.Errorf("the Machine is %s with Node %q", theirs.Status.Phase, theirs.Status.NodeRef.Name)
	}
	node, err := env.kube.CoreV1().Nodes().Get(ctx, theirs.Status.NodeRef.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if node.Spec.ProviderID != ours.Spec.ProviderID || theirs.Spec.ProviderID != ours.Spec.ProviderID {
		return fmt.Errorf("provider ids: Node %q, Machine %q, NstanceMachine %q",
			node.Spec.ProviderID, theirs.Spec.ProviderID, ours.Spec.ProviderID)
	}
	state, err := m.state(ctx)
	if err == nil && state != "running" {
		err = fmt.Errorf("instance %s is %s", m.instance, state)
	}
	return err
}

// state is what the shard's server says of the instance; "terminated" is also
// what it does not remember any more.
func (m machine) state(ctx context.Context) (string, error) {
	connection, err := env.n.Dial(m.shard)
	if err != nil {
		return "", err
	}
	defer connection.Close()
	answer, err := nstancev1.NewOperatorServiceClient(connection).
		GetInstanceStatus(ctx, &nstancev1.GetInstanceStatusRequest{InstanceId: m.instance})
	if status.Code(err) == codes.NotFound {
		return "terminated", nil
	}
	return answer.GetStatus(), err
}

// gone succeeds when nothing of a machine that had a shard is left anywhere.
func (m machine) gone(ctx context.Context) error {
	_, err := env.capi.Machines(nstance.Namespace).Get(ctx, m.name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return errors.Join(errors.New("the Machine is there"), err)
	}
	_, err = nstanceMachines().Get(ctx, m.name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return errors.Join(errors.New("the NstanceMachine is there"), err)
	}
	return m.ended(ctx)
}

// ended succeeds when the instance of a machine and its Node are gone.
func (m machine) ended(ctx context.Context) error {
	state, err := m.state(ctx)
	if err != nil {
		return err
	}
	if state != "terminated" {
		return fmt.Errorf("instance %s is %s", m.instance, state)
	}
	// A Node of this installation has the name of its instance.
	_, err = env.kube.CoreV1().Nodes().Get(ctx, m.instance, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return errors.Join(errors.New("the Node is there"), err)
	}
	return nil
}

// deleteOnShard ends the instance behind the operator's back.
func (m machine) deleteOnShard(t *testing.T) {
	t.Helper()
	connection, err := env.n.Dial(m.shard)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	_, err = nstancev1.NewOperatorServiceClient(connection).
		DeleteInstance(t.Context(), &nstancev1.DeleteInstanceRequest{InstanceId: m.instance})
	if err != nil {
		t.Fatal(err)
	}
}

// createMachine makes a Machine and its NstanceMachine, as a user would who wants
// one instance of the group. Empty means the group's instance type.
func createMachine(t *testing.T, name, instanceType string) {
	t.Helper()
	_, err := nstanceMachines().Create(t.Context(), &v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: group}, InstanceType: instanceType},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	create(t, "machines", "Machine", name, object{
		"clusterName": clusterName,
		"bootstrap":   object{"dataSecretName": ""},
		"infrastructureRef": object{
			"apiGroup": v1beta1.GroupName, "kind": "NstanceMachine", "name": name,
		},
	})
	t.Cleanup(func() {
		err := clusterAPI("machines").Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
}

// create makes an object of Cluster API.
func create(t *testing.T, resource, kind, name string, spec object) {
	t.Helper()
	made := &unstructured.Unstructured{Object: object{
		"apiVersion": clusterv1.GroupVersion.String(),
		"kind":       kind,
		"metadata":   object{"name": name},
		"spec":       spec,
	}}
	if _, err := clusterAPI(resource).Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
