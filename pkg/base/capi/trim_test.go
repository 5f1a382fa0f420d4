// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// A transform may run more than once on an object, and receives tombstones.
func TestTrimMachinePool(t *testing.T) {
	deleted := metav1.Unix(2, 0)
	metadata := metav1.ObjectMeta{
		Namespace: "ns", Name: "workers", UID: "uid", ResourceVersion: "7", Generation: 3,
		CreationTimestamp: metav1.Unix(1, 0), DeletionTimestamp: &deleted,
		Labels: map[string]string{"a": "b"}, Annotations: map[string]string{clusterv1.PausedAnnotation: ""},
		Finalizers: []string{"x"}, OwnerReferences: []metav1.OwnerReference{{Kind: "Cluster"}},
	}
	ref := clusterv1.ContractVersionedObjectReference{APIGroup: "infrastructure.cluster.x-k8s.io", Kind: "NstanceMachinePool", Name: "workers"}
	machinePool := &clusterv1.MachinePool{
		TypeMeta:   metav1.TypeMeta{Kind: "MachinePool"},
		ObjectMeta: metadata,
		Spec: clusterv1.MachinePoolSpec{ClusterName: "one", Replicas: ptr.To[int32](3), ProviderIDList: []string{"kwok://i-1"},
			Template: clusterv1.MachineTemplateSpec{Spec: clusterv1.MachineSpec{
				ClusterName: "one", Bootstrap: clusterv1.Bootstrap{DataSecretName: ptr.To("")}, InfrastructureRef: ref,
			}}},
		Status: clusterv1.MachinePoolStatus{Phase: "Running", Conditions: []metav1.Condition{{Type: "Ready"}}},
	}
	machinePool.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{}}}`)}}
	want := &clusterv1.MachinePool{
		ObjectMeta: metadata,
		Spec: clusterv1.MachinePoolSpec{ClusterName: "one", Replicas: ptr.To[int32](3),
			Template: clusterv1.MachineTemplateSpec{Spec: clusterv1.MachineSpec{InfrastructureRef: ref}}},
	}
	want.ManagedFields = replicasOwned
	for range 2 {
		machinePool = trimmed(t, machinePool)
		if diff := cmp.Diff(want, machinePool); diff != "" {
			t.Fatalf("the cached MachinePool (-want +got):\n%s", diff)
		}
		if &machinePool.ManagedFields[0] != &replicasOwned[0] {
			t.Error("the managed fields take memory of their own")
		}
	}
	for _, other := range []any{cache.DeletedFinalStateUnknown{Key: "one"}, "another type"} {
		if kept, err := TrimMachinePool(other); err != nil || kept != other {
			t.Errorf("the transform turned %v into %v, error %v", other, kept, err)
		}
	}
}

// Cluster API changes MachinePools often, and each change is transformed and compared.
func TestReplicasOwnedAllocatesLittle(t *testing.T) {
	machinePool := &clusterv1.MachinePool{}
	machinePool.ManagedFields = []metav1.ManagedFieldsEntry{
		{FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:finalizers":{},"f:labels":{"f:a":{}}},"f:spec":{"f:template":{}}}`)},
		{FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:conditions":{},"f:phase":{}}}`)},
	}
	if count := testing.AllocsPerRun(100, func() { ReplicasOwned(machinePool) }); count > 0 {
		t.Errorf("%v allocations without an entry for replicas", count)
	}
	machinePool.ManagedFields = []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{}}}`)}}
	machinePool = trimmed(t, machinePool)
	if count := testing.AllocsPerRun(100, func() { ReplicasOwned(machinePool) }); count > 0 {
		t.Errorf("%v allocations for a cached MachinePool", count)
	}
}
