// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// ByPool is the name of the index of MachinePools by the result of PoolOf.
const ByPool = "pool"

// PoolOf returns the name of the NstanceMachinePool that a MachinePool refers to, or ""
// if it refers to another kind. The pool is in the same namespace.
func PoolOf(machinePool *clusterv1.MachinePool) string {
	ref := machinePool.Spec.Template.Spec.InfrastructureRef
	if ref.Kind != v1beta1.PoolKind || ref.APIGroup != v1beta1.GroupName {
		return ""
	}
	return ref.Name
}

// Autoscaled reports whether a MachinePool has both limits of the cluster autoscaler, so that it may remove
// Nodes (docs/cluster-autoscaler.md#set-it-up).
func Autoscaled(machinePool *clusterv1.MachinePool) bool {
	_, least := machinePool.Annotations[clusterv1.AutoscalerMinSizeAnnotation]
	_, most := machinePool.Annotations[clusterv1.AutoscalerMaxSizeAnnotation]
	return least && most
}

var machinePoolIndexers = cache.Indexers{ByPool: func(obj any) ([]string, error) {
	if machinePool, ok := obj.(*clusterv1.MachinePool); ok {
		if pool := PoolOf(machinePool); pool != "" {
			return []string{pool}, nil
		}
	}
	return nil, nil
}}

// The managed fields of every cached MachinePool are one of these three values, to save
// memory.
var (
	replicasOwned = []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:replicas":{}}}`)}}
	// replicasOfOperator is the value for a MachinePool whose spec the operator owns.
	replicasOfOperator = []metav1.ManagedFieldsEntry{{
		Manager: FieldManager, Operation: metav1.ManagedFieldsOperationUpdate, FieldsV1: replicasOwned[0].FieldsV1,
	}}
	// replicasNotOwned has an entry, because an object without entries has unknown owners.
	replicasNotOwned = []metav1.ManagedFieldsEntry{{}}
)

// ReplicasOwned reports whether a field manager owns spec.replicas. A default that the
// webhook of Cluster API has set, and a value that was written through the scale
// subresource, have no owner (docs/capi.md#replicas).
func ReplicasOwned(machinePool *clusterv1.MachinePool) bool {
	return slices.ContainsFunc(machinePool.ManagedFields, ownsReplicas)
}

// UnusedBootstrap returns the bootstrap data of a Machine or of the template of a MachinePool
// that Nstance does not use, "" if it has none: the shard server provides the userdata of
// instances (docs/capi.md#machine-pools).
func UnusedBootstrap(bootstrap *clusterv1.Bootstrap) string {
	switch {
	case ptr.Deref(bootstrap.DataSecretName, "") != "":
		return fmt.Sprintf("dataSecretName %q", *bootstrap.DataSecretName)
	case bootstrap.ConfigRef.IsDefined():
		return fmt.Sprintf("configRef to %s %q", bootstrap.ConfigRef.Kind, bootstrap.ConfigRef.Name)
	default:
		return ""
	}
}

// TrimMachinePool is the transform of a MachinePool informer. It keeps the metadata, the
// fields of the spec that the operator reads, and the managed fields that ReplicasOwned
// and OperatorOwnsSpec need.
func TrimMachinePool(obj any) (any, error) {
	machinePool, ok := obj.(*clusterv1.MachinePool)
	if !ok {
		return obj, nil
	}
	kept := &clusterv1.MachinePool{ObjectMeta: machinePool.ObjectMeta}
	kept.Spec.ClusterName = machinePool.Spec.ClusterName
	kept.Spec.Replicas = machinePool.Spec.Replicas
	// MachineDrainRules select machines by their labels.
	kept.Spec.Template.Labels = machinePool.Spec.Template.Labels
	kept.Spec.Template.Spec.InfrastructureRef = machinePool.Spec.Template.Spec.InfrastructureRef
	kept.Spec.Template.Spec.Bootstrap = machinePool.Spec.Template.Spec.Bootstrap
	switch {
	case OperatorOwnsSpec(machinePool.ManagedFields):
		kept.ManagedFields = replicasOfOperator
	case ReplicasOwned(machinePool):
		kept.ManagedFields = replicasOwned
	case len(machinePool.ManagedFields) > 0:
		kept.ManagedFields = replicasNotOwned
	}
	return kept, nil
}

// ownsReplicas decodes the fields only if they contain a field replicas, because it is
// called for every change of every MachinePool.
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

// ScaleMachinePool sets the replicas of a MachinePool through its scale subresource,
// which needs no permission to update MachinePools. The error is a conflict if the
// MachinePool has changed since it was read.
func (c *Client) ScaleMachinePool(ctx context.Context, machinePool *clusterv1.MachinePool, replicas int32, options metav1.PatchOptions) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": machinePool.ResourceVersion},
		"spec":     map[string]any{"replicas": replicas},
	})
	if err != nil {
		return fmt.Errorf("encode the scale: %w", err)
	}
	// The response, a Scale, is not needed.
	return c.rest.Patch(types.MergePatchType).
		Namespace(machinePool.Namespace).Resource("machinepools").Name(machinePool.Name).SubResource("scale").
		VersionedParams(&options, c.codec).Body(patch).Do(ctx).Error()
}

// ApplyMachinePoolAnnotations applies annotations to a MachinePool by server-side apply,
// and returns the MachinePool after the change. Server-side apply removes other annotations
// that only this field manager owns
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/). It does not create a
// MachinePool: if the MachinePool was deleted, or deleted and created again, the error is a
// conflict. Without force, an annotation with another value of another field manager is a
// conflict, too; a cause of type FieldManagerConflict names the annotation.
func (c *Client) ApplyMachinePoolAnnotations(
	ctx context.Context, machinePool *clusterv1.MachinePool, annotations map[string]string, options metav1.ApplyOptions,
) (*clusterv1.MachinePool, error) {
	// The Go type MachinePool would also send required fields without a value.
	type applied struct {
		metav1ac.TypeMetaApplyConfiguration `json:",inline"`
		Metadata                            *metav1ac.ObjectMetaApplyConfiguration `json:"metadata"`
	}
	patch, err := json.Marshal(applied{
		TypeMetaApplyConfiguration: *metav1ac.TypeMeta().WithAPIVersion(clusterv1.GroupVersion.String()).WithKind("MachinePool"),
		Metadata: metav1ac.ObjectMeta().WithName(machinePool.Name).WithNamespace(machinePool.Namespace).WithUID(machinePool.UID).
			WithAnnotations(annotations),
	})
	if err != nil {
		return nil, fmt.Errorf("encode the annotations: %w", err)
	}
	return c.MachinePools(machinePool.Namespace).Patch(ctx, machinePool.Name, types.ApplyPatchType, patch, options.ToPatchOptions())
}

// NstanceMachineOf returns the name of the NstanceMachine that a Machine refers to, "" if
// it refers to another kind. The NstanceMachine is in the same namespace.
func NstanceMachineOf(machine *clusterv1.Machine) string {
	ref := machine.Spec.InfrastructureRef
	if ref.Kind != v1beta1.MachineKind || ref.APIGroup != v1beta1.GroupName {
		return ""
	}
	return ref.Name
}

// MachineLabels returns the labels that the Machine of an instance of a MachinePool has, or would have
// (https://github.com/kubernetes-sigs/cluster-api/blob/v1.14.2/core/reconcilers/machinepool/machinepool_controller_phases.go).
func MachineLabels(machinePool *clusterv1.MachinePool) labels.Set {
	machine := labels.Set{}
	maps.Copy(machine, machinePool.Spec.Template.Labels)
	machine[clusterv1.MachinePoolNameLabel] = LabelValue(machinePool.Name)
	machine[clusterv1.ClusterNameLabel] = machinePool.Spec.ClusterName
	return machine
}

// LabelValue returns the value of Cluster API's labels for an object with a name: the
// name, or a hash of it if the name is not a valid label value. The label
// cluster.x-k8s.io/pool-name and all its selectors need this value
// (docs/capi.md#labels).
func LabelValue(name string) string {
	if len(validation.IsValidLabelValue(name)) == 0 {
		return name
	}
	hash := fnv.New32a()
	hash.Write([]byte(name))
	return "hash_" + base64.RawURLEncoding.EncodeToString(hash.Sum(nil)) + "_z"
}
