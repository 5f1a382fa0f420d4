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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

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

// With "kubectl delete machine --cascade=foreground" the garbage collector deletes what a
// Machine owns first. Cluster API does not drain a Machine whose infrastructure is being
// deleted, so the policy rejects that until Cluster API has drained the Node.
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
