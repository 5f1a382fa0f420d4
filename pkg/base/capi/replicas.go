// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"bytes"
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// The managed fields of all cached MachinePools are one of these.
var (
	replicasOwned = []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{}}}`)}}
	// replicasNotOwned is not empty, because the owners of an object without any entry
	// are unknown.
	replicasNotOwned = []metav1.ManagedFieldsEntry{{}}
)

// ReplicasOwned reports whether a field manager owns spec.replicas. A number that Cluster
// API's webhook has set as a default has no owner, nor has a number that was written
// through the scale subresource (docs/capi.md#replicas).
func ReplicasOwned(machinePool *clusterv1.MachinePool) bool {
	return slices.ContainsFunc(machinePool.ManagedFields, ownsReplicas)
}

// TrimMachinePool is the transform of a MachinePool informer. It keeps the metadata and
// what the operator reads of the spec. Of metadata.managedFields it keeps what
// ReplicasOwned needs.
func TrimMachinePool(obj any) (any, error) {
	machinePool, ok := obj.(*clusterv1.MachinePool)
	if !ok {
		return obj, nil
	}
	kept := &clusterv1.MachinePool{ObjectMeta: machinePool.ObjectMeta}
	kept.Spec.ClusterName = machinePool.Spec.ClusterName
	kept.Spec.Replicas = machinePool.Spec.Replicas
	kept.Spec.Template.Spec.InfrastructureRef = machinePool.Spec.Template.Spec.InfrastructureRef
	switch {
	case ReplicasOwned(machinePool):
		kept.ManagedFields = replicasOwned
	case len(machinePool.ManagedFields) > 0:
		kept.ManagedFields = replicasNotOwned
	}
	return kept, nil
}

// ownsReplicas parses the fields only if they contain replicas, of the spec or the
// status: it is called for every change of every MachinePool.
func ownsReplicas(entry metav1.ManagedFieldsEntry) bool {
	if entry.FieldsV1 == replicasOwned[0].FieldsV1 {
		return true
	}
	raw := entry.FieldsV1.GetRawBytes()
	if !bytes.Contains(raw, []byte(`"f:replicas"`)) {
		return false
	}
	var owned struct {
		Spec struct {
			Replicas *struct{} `json:"f:replicas"`
		} `json:"f:spec"`
	}
	return json.Unmarshal(raw, &owned) == nil && owned.Spec.Replicas != nil
}
