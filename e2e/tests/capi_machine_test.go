// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	infrastructureclient "nstance.dev/operator/pkg/generated/clientset/versioned/typed/infrastructure/v1beta1"
)

// machine is a Machine that belongs to no pool, with its NstanceMachine. All that
// the test makes for it has its name.
type machine struct {
	name string
	// node is known once hasNode has succeeded.
	node string
}

// createMachine orders an instance of a group that a shard has, and removes at the
// end of the test what a failure left.
func createMachine(t testing.TB, name, group string) *machine {
	t.Helper()
	m := &machine{name: name}
	t.Cleanup(func() { m.cleanUp(t) })
	_, err := nstanceMachines().Create(t.Context(), &v1beta1.NstanceMachine{
		ObjectMeta: m.meta(),
		Spec:       v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: v1beta1.Identifier(group)}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = machines().Create(t.Context(), &clusterv1.Machine{
		TypeMeta:   metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine"},
		ObjectMeta: m.meta(),
		Spec: clusterv1.MachineSpec{
			ClusterName:       clusterName,
			Bootstrap:         clusterv1.Bootstrap{DataSecretName: ptr.To("")},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: "NstanceMachine", Name: name},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func machines() *capi.MachineClient { return env.capi.Machines(nstance.Namespace) }

func nstanceMachines() infrastructureclient.NstanceMachineInterface {
	return env.nstance.InfrastructureV1beta1().NstanceMachines(nstance.Namespace)
}

func (m *machine) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: m.name, Namespace: nstance.Namespace}
}

// hasNode succeeds when Cluster API has matched the Machine with its Node.
func (m *machine) hasNode(ctx context.Context) error {
	object, err := machines().Get(ctx, m.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if object.Status.Phase != string(clusterv1.MachinePhaseRunning) {
		return fmt.Errorf("the Machine is %s", object.Status.Phase)
	}
	m.node = object.Status.NodeRef.Name
	return nil
}

// fill puts on the Node what a drain has to look at: a Pod that is to be
// evicted, one of a DaemonSet, which is not, and a volume.
func (m *machine) fill(t testing.TB) {
	t.Helper()
	labels := map[string]string{"app": m.name}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: m.node},
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
		ObjectMeta: metav1.ObjectMeta{Name: m.name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "nobody", NodeName: m.node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To(m.name)},
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
func (m *machine) hasPods(ctx context.Context) error {
	pods, err := env.kube.CoreV1().Pods(nstance.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app=" + m.name, FieldSelector: "spec.nodeName=" + m.node + ",status.phase=Running",
	})
	if err == nil && len(pods.Items) != 2 {
		err = fmt.Errorf("%d Pods, want 2", len(pods.Items))
	}
	return err
}

func (m *machine) delete(t testing.TB) {
	t.Helper()
	if err := machines().Delete(t.Context(), m.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// detach takes the volume off the Node.
func (m *machine) detach(t testing.TB) {
	t.Helper()
	if err := env.kube.StorageV1().VolumeAttachments().Delete(t.Context(), m.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// gone succeeds when Cluster API has ended the Machine, our object and the Node.
func (m *machine) gone(ctx context.Context) error {
	_, err := machines().Get(ctx, m.name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return errors.Join(errors.New("the Machine is there"), err)
	}
	_, err = nstanceMachines().Get(ctx, m.name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return errors.Join(errors.New("the NstanceMachine is there"), err)
	}
	if m.node == "" {
		return nil
	}
	_, err = env.kube.CoreV1().Nodes().Get(ctx, m.node, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		return errors.Join(errors.New("the Node is there"), err)
	}
	return nil
}

// cleanUp removes all that may be left, and waits for the Machine, without which
// its group can go. What was deleted is no error.
func (m *machine) cleanUp(t testing.TB) {
	ctx := context.WithoutCancel(t.Context())
	options := metav1.DeleteOptions{}
	for what, err := range map[string]error{
		"Deployment":       env.kube.AppsV1().Deployments(nstance.Namespace).Delete(ctx, m.name, options),
		"DaemonSet":        env.kube.AppsV1().DaemonSets(nstance.Namespace).Delete(ctx, m.name, options),
		"VolumeAttachment": env.kube.StorageV1().VolumeAttachments().Delete(ctx, m.name, options),
		"Machine":          machines().Delete(ctx, m.name, options),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("removing %s %s: %v", what, m.name, err)
		}
	}
	eventually(t, time.Minute, "the Machine is gone", m.gone)
}
