// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// capiManager is the account of Cluster API.
const capiManager = "system:serviceaccount:capi-system:capi-manager"

// The API server itself protects the infrastructure of a Machine from deletion, because its
// Node would not be drained.
func TestDeletionPolicyOfNstanceMachines(t *testing.T) {
	testcluster.Stop(t, env.OperatorProcess())
	machine := createMachineOwner(t, "some-machine")
	owned := createNstanceMachine(t, "owned", controlling(machine))
	const reason = `NstanceMachine "owned" is the infrastructure of Machine "some-machine": delete the Machine instead, its Node is drained first`
	testcluster.Eventually(t, time.Minute, "the deletion is rejected", func(ctx context.Context) error {
		return forbidden(owned.delete(ctx, "", dry), reason)
	})

	t.Run("by user", func(t *testing.T) {
		const controllers = "system:serviceaccount:kube-system:"
		for user, allowed := range map[string]bool{
			"":              false,
			"system:anyone": false,
			"system:serviceaccount:capi-system:capi-manager":   true,
			installation.OperatorUser:                          true,
			"system:serviceaccount:elsewhere:nstance-operator": false,
			controllers + "namespace-controller":               true,
			// It deletes what a Machine owns before Cluster API has drained the Node.
			controllers + "generic-garbage-collector": false,
			controllers + "replicaset-controller":     false,
			"system:kube-controller-manager":          false,
		} {
			err := owned.delete(t.Context(), user, dry)
			if allowed {
				require.NoError(t, err, "%q", user)
			} else if err := forbidden(err, reason); err != nil {
				t.Errorf("%q: %v", user, err)
			}
		}
	})

	t.Run("by owner", func(t *testing.T) {
		elsewhere := controlling(machine)
		elsewhere.APIVersion = "machine.example.com/v1beta2"
		for name, owner := range map[string]metav1.OwnerReference{"not-controlled": machine, "of-another-group": elsewhere} {
			require.NoError(t, createNstanceMachine(t, name, owner).delete(t.Context(), "", dry), name)
		}
		require.NoError(t, createNstanceMachine(t, "not-owned").delete(t.Context(), "", dry))
	})

	t.Run("by annotation", func(t *testing.T) {
		owned.annotate(t, confirmDeletion, ptr.To("another"))
		if err := forbidden(owned.delete(t.Context(), "", dry), reason); err != nil {
			t.Errorf("with the name of another object: %v", err)
		}
		owned.annotate(t, confirmDeletion, &owned.name)
		require.NoError(t, owned.delete(t.Context(), "", dry))
		require.NoError(t, owned.delete(t.Context(), "system:serviceaccount:kube-system:generic-garbage-collector", dry))
		owned.annotate(t, confirmDeletion, nil)
		owned.annotate(t, deleteForMove, ptr.To(""))
		require.NoError(t, owned.delete(t.Context(), "", dry))
		owned.annotate(t, deleteForMove, nil)
	})
}

// createNstanceMachine creates an NstanceMachine without an instance until the end of the
// test.
func createNstanceMachine(t *testing.T, name string, owners ...metav1.OwnerReference) deletable {
	t.Helper()
	object := &v1beta1.NstanceMachine{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: installation.Namespace, OwnerReferences: owners,
			Annotations: map[string]string{clusterv1.PausedAnnotation: ""},
		},
		Spec: v1beta1.NstanceMachineSpec{GroupRef: v1beta1.GroupReference{Name: "none"}},
	}
	_, err := env.NstanceMachines().Create(t.Context(), object, metav1.CreateOptions{})
	require.NoError(t, err)
	created := deletable{v1beta1.MachineKind, name}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := created.delete(ctx, capiManager, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
			require.NoError(t, err)
		}
	})
	return created
}

// createMachineOwner creates a Machine that Cluster API leaves as it is, until the end of
// the test, and returns a reference to it. The garbage collector deletes an
// object whose owners do not exist.
func createMachineOwner(t *testing.T, name string) metav1.OwnerReference {
	t.Helper()
	created, err := env.Machines().Create(t.Context(), &clusterv1.Machine{
		TypeMeta: metav1.TypeMeta{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: installation.Namespace, Annotations: map[string]string{clusterv1.PausedAnnotation: ""},
		},
		Spec: clusterv1.MachineSpec{
			ClusterName:       installation.ClusterName,
			Bootstrap:         clusterv1.Bootstrap{DataSecretName: ptr.To("")},
			InfrastructureRef: clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: v1beta1.MachineKind, Name: name},
		},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, env.Machines().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}))
	})
	return metav1.OwnerReference{APIVersion: clusterv1.GroupVersion.String(), Kind: "Machine", Name: name, UID: created.UID}
}

// controlling returns a reference to an owner that is the controller.
func controlling(owner metav1.OwnerReference) metav1.OwnerReference {
	owner.Controller = ptr.To(true)
	return owner
}
