// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// machine is a Machine that belongs to no pool, with an NstanceMachine and a
// Node that are the test's own. All objects of it have its name.
type machine string

// createMachine makes the Node and the objects that stand for it, and removes
// at the end of the test what a failure left.
func createMachine(t testing.TB, name string) machine {
	t.Helper()
	m := machine(name)
	t.Cleanup(func() { m.cleanUp(t) })
	if _, err := env.kube.CoreV1().Nodes().Create(t.Context(), m.newNode(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	nstanceMachines := env.nstance.InfrastructureV1beta1().NstanceMachines(nstance.Namespace)
	instance, err := nstanceMachines.Create(t.Context(), &v1beta1.NstanceMachine{
		ObjectMeta: m.meta(),
		Spec:       v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: v1beta1.Identifier(m)}, ProviderID: m.providerID()},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	instance.Status.Ready = ptr.To(true)
	instance.Status.Initialization.Provisioned = ptr.To(true)
	if _, err := nstanceMachines.UpdateStatus(t.Context(), instance, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&clusterv1.Machine{
		TypeMeta:   metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine"},
		ObjectMeta: m.meta(),
		Spec: clusterv1.MachineSpec{
			ClusterName:       clusterName,
			Bootstrap:         clusterv1.Bootstrap{DataSecretName: ptr.To("")},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: "NstanceMachine", Name: name},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	delete(object, "status")
	if _, err := m.machines().Create(t.Context(), &unstructured.Unstructured{Object: object}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m machine) machines() dynamic.ResourceInterface {
	return env.dynamic.Resource(clusterv1.GroupVersion.WithResource("machines")).Namespace(nstance.Namespace)
}

func (m machine) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: string(m), Namespace: nstance.Namespace}
}

func (m machine) providerID() string { return "kwok:///nowhere/" + string(m) }

func (m machine) newNode() *corev1.Node {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse("2"),
		corev1.ResourceMemory: resource.MustParse("8Gi"),
		corev1.ResourcePods:   resource.MustParse("110"),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: string(m), Labels: map[string]string{corev1.LabelHostname: string(m)}},
		Spec:       corev1.NodeSpec{ProviderID: m.providerID()},
		Status: corev1.NodeStatus{
			Capacity:    capacity,
			Allocatable: capacity,
			NodeInfo:    corev1.NodeSystemInfo{KubeletVersion: "v1.36.3"},
		},
	}
}

// hasNode succeeds when Cluster API has matched the Machine with its Node.
func (m machine) hasNode(ctx context.Context) error {
	object, err := m.machines().Get(ctx, string(m), metav1.GetOptions{})
	if err != nil {
		return err
	}
	node, _, err := unstructured.NestedString(object.Object, "status", "nodeRef", "name")
	if err == nil && node != string(m) {
		err = fmt.Errorf("nodeRef is %q", node)
	}
	return err
}

// fill puts on the Node what a drain has to look at: a Pod that is to be
// evicted, one of a DaemonSet, which is not, and a volume.
func (m machine) fill(t testing.TB) {
	t.Helper()
	labels := map[string]string{"app": string(m)}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: string(m)},
			Containers:   []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	_, err := env.kube.AppsV1().Deployments(nstance.Namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: m.meta(), Spec: appsv1.DeploymentSpec{Selector: selector, Template: template},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = env.kube.AppsV1().DaemonSets(nstance.Namespace).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: m.meta(), Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	attachments := env.kube.StorageV1().VolumeAttachments()
	attachment, err := attachments.Create(t.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: string(m)},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "nobody", NodeName: string(m), Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To(string(m))},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	attachment.Status.Attached = true
	if _, err := attachments.UpdateStatus(t.Context(), attachment, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// hasPods succeeds when both Pods run on the Node.
func (m machine) hasPods(ctx context.Context) error {
	pods, err := env.kube.CoreV1().Pods(nstance.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app=" + string(m), FieldSelector: "spec.nodeName=" + string(m) + ",status.phase=Running",
	})
	if err == nil && len(pods.Items) != 2 {
		err = fmt.Errorf("%d Pods, want 2", len(pods.Items))
	}
	return err
}

func (m machine) delete(t testing.TB) {
	t.Helper()
	if err := m.machines().Delete(t.Context(), string(m), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// detach takes the volume off the Node.
func (m machine) detach(t testing.TB) {
	t.Helper()
	if err := env.kube.StorageV1().VolumeAttachments().Delete(t.Context(), string(m), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// gone succeeds when Cluster API has ended the Machine, our object and the Node.
func (m machine) gone(ctx context.Context) error {
	_, err := m.machines().Get(ctx, string(m), metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return errors.Join(errors.New("the Machine is there"), err)
	}
	_, err = env.nstance.InfrastructureV1beta1().NstanceMachines(nstance.Namespace).Get(ctx, string(m), metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return errors.Join(errors.New("the NstanceMachine is there"), err)
	}
	_, err = env.kube.CoreV1().Nodes().Get(ctx, string(m), metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return errors.Join(errors.New("the Node is there"), err)
	}
	return nil
}

// cleanUp removes all that may be left. What was deleted is no error, and a
// Machine whose Node is gone has nothing to wait for.
func (m machine) cleanUp(t testing.TB) {
	ctx := context.WithoutCancel(t.Context())
	options := metav1.DeleteOptions{}
	for what, err := range map[string]error{
		"Deployment":       env.kube.AppsV1().Deployments(nstance.Namespace).Delete(ctx, string(m), options),
		"DaemonSet":        env.kube.AppsV1().DaemonSets(nstance.Namespace).Delete(ctx, string(m), options),
		"VolumeAttachment": env.kube.StorageV1().VolumeAttachments().Delete(ctx, string(m), options),
		"Node":             env.kube.CoreV1().Nodes().Delete(ctx, string(m), options),
		"Machine":          m.machines().Delete(ctx, string(m), options),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("removing %s %s: %v", what, m, err)
		}
	}
}
