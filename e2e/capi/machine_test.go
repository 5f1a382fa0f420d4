// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// If Cluster API does not find the Node of a Machine, the operator sets it.
func TestNodeOfMachineWithoutClusterAPI(t *testing.T) {
	const name = "noderef"
	eventuallyConnected(t)
	env.CreatePoolForTest(t, name, 0)
	// Cluster API first sets the owner of the NstanceMachine, which the operator needs.
	testcluster.Stop(t, env.OperatorProcess())
	m := createMachine(t, name, name)
	testcluster.Eventually(t, time.Minute, "the NstanceMachine has an owner", func(ctx context.Context) error {
		object, err := env.NstanceMachines().Get(ctx, name, metav1.GetOptions{})
		if err == nil && len(object.OwnerReferences) == 0 {
			err = errors.New("it has none")
		}
		return err
	})
	capi := env.Component(controlplane.CAPI)
	testcluster.Stop(t, capi)
	testcluster.Start(t, env.OperatorProcess())
	var node string
	testcluster.Eventually(t, 2*time.Minute, "the Machine has a Node", func(ctx context.Context) error {
		object, err := env.Machines().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if node = object.Status.NodeRef.Name; node == "" {
			return errors.New("it has none")
		}
		return nil
	})
	object, err := env.NstanceMachines().Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, object.Status.InstanceID, node)

	// Cluster API finds the same Node later.
	testcluster.Start(t, capi)
	testcluster.Eventually(t, 2*time.Minute, "the Machine runs", m.hasNode)
	assert.Equal(t, node, m.node)
	m.delete(t)
	testcluster.Eventually(t, 2*time.Minute, "the Machine is deleted", m.deleted)
}

const (
	garbageCollector = "system:serviceaccount:kube-system:generic-garbage-collector"
	// capiManager is Cluster API in the management cluster.
	capiManager = "system:serviceaccount:capi-system:capi-manager"
)

// deletesNstanceMachine matches requests for the deletion of an NstanceMachine.
func deletesNstanceMachine(name string) testcluster.Match {
	return func(r controlplane.Request) bool {
		return r.Verb == "delete" && r.Resource == "nstancemachines" && r.Name == name
	}
}

// untilGarbageIsCollected waits until the garbage collector, which finds new kinds from time
// to time, deletes an NstanceMachine whose owner does not exist.
func untilGarbageIsCollected(t *testing.T) {
	t.Helper()
	const name = "garbage"
	_, err := env.NstanceMachines().Create(t.Context(), &v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: installation.Namespace, Annotations: map[string]string{clusterv1.PausedAnnotation: ""},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: name, UID: "none"}},
		},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "none"}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	testcluster.Eventually(t, 3*time.Minute, "garbage is collected", func(ctx context.Context) error {
		_, err := env.NstanceMachines().Get(ctx, name, metav1.GetOptions{})
		return testcluster.NotFound("the NstanceMachine", err)
	})
}

// With "kubectl delete machine --cascade=foreground" the garbage collector first deletes the
// objects that a Machine owns
// (https://kubernetes.io/docs/concepts/architecture/garbage-collection/#foreground-deletion).
// Cluster API does not drain a Machine whose infrastructure is being deleted, so the policy
// rejects that until Cluster API has drained the Node.
func TestForegroundDeletionOfAMachineDrainsItsNode(t *testing.T) {
	t.Parallel()
	const name = "foreground"
	eventuallyConnected(t)
	env.CreatePoolForTest(t, name, 0)
	m := createMachine(t, name, name)
	await := func(what string, condition func(context.Context) error) {
		t.Helper()
		testcluster.Eventually(t, 2*time.Minute, what, condition)
	}
	await("the Machine has a Node", m.hasNode)
	m.fill(t)
	await("Pods run on the Node", m.hasPods)
	untilGarbageIsCollected(t)

	from := env.AuditEnd(t)
	foreground := metav1.DeletePropagationForeground
	require.NoError(t, env.Machines().Delete(t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &foreground}))
	await("the garbage collector tries to delete the NstanceMachine", func(context.Context) error {
		if len(env.Requests(t, from, deletesNstanceMachine(name))) == 0 {
			return errors.New("it does not")
		}
		return nil
	})
	await("the Node is drained", func(ctx context.Context) error {
		pods, err := env.Kube.CoreV1().Pods(podNamespace).List(ctx, metav1.ListOptions{
			LabelSelector: "app=" + name, FieldSelector: "spec.nodeName=" + m.node,
		})
		if err == nil && len(pods.Items) != 1 {
			err = fmt.Errorf("%d Pods, want only that of the DaemonSet", len(pods.Items))
		}
		return err
	})
	// The drain waits for the volume.
	object, err := env.NstanceMachines().Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	assert.Zero(t, object.DeletionTimestamp, "the NstanceMachine is deleted before the drain is finished")
	_, err = env.Kube.CoreV1().Nodes().Get(t.Context(), m.node, metav1.GetOptions{})
	require.NoError(t, err)

	m.detach(t)
	await("the Machine is deleted", m.deleted)
	deletedByCAPI := false
	for _, r := range env.Requests(t, from, deletesNstanceMachine(name)) {
		switch {
		case r.User == capiManager:
			deletedByCAPI = deletedByCAPI || r.Code < 300
		case r.User == garbageCollector && r.Code < 300 && !deletedByCAPI:
			t.Errorf("the garbage collector has deleted the NstanceMachine: %+v", r)
		case r.User != garbageCollector && r.User != capiManager:
			t.Errorf("%s has deleted the NstanceMachine", r.User)
		}
	}
}

// machine is a Machine that belongs to no pool, with its NstanceMachine. All objects
// that the test creates for it have its name.
type machine struct {
	name string
	// node is known once hasNode has succeeded.
	node string
}

// createMachine creates an instance of a group that a shard has. It is deleted at the end of the
// test, if the test has not deleted it.
func createMachine(t testing.TB, name, group string) *machine {
	t.Helper()
	m := &machine{name: name}
	t.Cleanup(func() { m.cleanUp(t) })
	env.CreateMachine(t, name, group, "")
	return m
}

// podNamespace accepts Pods that are not restricted.
const podNamespace = metav1.NamespaceDefault

func (m *machine) meta() metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: m.name, Namespace: podNamespace}
}

// hasNode succeeds when Cluster API has matched the Machine with its Node.
func (m *machine) hasNode(ctx context.Context) error {
	object, err := env.Machines().Get(ctx, m.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if object.Status.Phase != string(clusterv1.MachinePhaseRunning) {
		return fmt.Errorf("the Machine is %s", object.Status.Phase)
	}
	m.node = object.Status.NodeRef.Name
	return nil
}

// fill creates the objects that matter for a drain of the Node: a Pod to evict, a Pod of a
// DaemonSet, which is not evicted, and a volume.
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
	_, err := env.Kube.AppsV1().Deployments(podNamespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: m.meta(), Spec: appsv1.DeploymentSpec{Selector: selector, Template: template},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = env.Kube.AppsV1().DaemonSets(podNamespace).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: m.meta(), Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	attachments := env.Kube.StorageV1().VolumeAttachments()
	attachment, err := attachments.Create(t.Context(), &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: m.name},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: "none", NodeName: m.node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: ptr.To(m.name)},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	attachment.Status.Attached = true
	_, err = attachments.UpdateStatus(t.Context(), attachment, metav1.UpdateOptions{})
	require.NoError(t, err)
}

// hasPods succeeds when both Pods run on the Node.
func (m *machine) hasPods(ctx context.Context) error {
	pods, err := env.Kube.CoreV1().Pods(podNamespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app=" + m.name, FieldSelector: "spec.nodeName=" + m.node + ",status.phase=Running",
	})
	if err == nil && len(pods.Items) != 2 {
		err = fmt.Errorf("%d Pods, want 2", len(pods.Items))
	}
	return err
}

func (m *machine) delete(t testing.TB) {
	t.Helper()
	require.NoError(t, env.Machines().Delete(t.Context(), m.name, metav1.DeleteOptions{}))
}

// detach detaches the volume from the Node.
func (m *machine) detach(t testing.TB) {
	t.Helper()
	require.NoError(t, env.Kube.StorageV1().VolumeAttachments().Delete(t.Context(), m.name, metav1.DeleteOptions{}))
}

// deleted succeeds when the Machine, the NstanceMachine and the Node are deleted.
func (m *machine) deleted(ctx context.Context) error { return env.MachineDeleted(ctx, m.name, m.node) }

// cleanUp deletes the objects that may be left, and waits until the Machine is deleted, which
// blocks the deletion of its group.
func (m *machine) cleanUp(t testing.TB) {
	ctx := context.WithoutCancel(t.Context())
	options := metav1.DeleteOptions{}
	for what, err := range map[string]error{
		"Deployment":       env.Kube.AppsV1().Deployments(podNamespace).Delete(ctx, m.name, options),
		"DaemonSet":        env.Kube.AppsV1().DaemonSets(podNamespace).Delete(ctx, m.name, options),
		"VolumeAttachment": env.Kube.StorageV1().VolumeAttachments().Delete(ctx, m.name, options),
		"Machine":          env.Machines().Delete(ctx, m.name, options),
	} {
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("delete %s %s: %v", what, m.name, err)
		}
	}
	testcluster.Eventually(t, time.Minute, "the Machine is deleted", m.deleted)
}
