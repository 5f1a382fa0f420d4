// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

// ApplyMachinePoolAnnotations applies annotations to a MachinePool by server-side
// apply, and returns the MachinePool after the change. Other annotations that the field
// manager in options owns alone are removed. It does not create a MachinePool: if the
// MachinePool was deleted, or deleted and created again, the error is a conflict.
// Without force, an annotation with another value of another field manager is a
// conflict, too; a cause of type FieldManagerConflict names the annotation.
func (c *Client) ApplyMachinePoolAnnotations(
	ctx context.Context, machinePool *clusterv1.MachinePool, annotations map[string]string, options metav1.ApplyOptions,
) (*clusterv1.MachinePool, error) {
	// The Go type of a MachinePool would also apply fields without a value.
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
