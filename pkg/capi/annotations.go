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

// ApplyMachinePoolAnnotations makes annotations the only ones of a MachinePool
// that the field manager in options owns by server-side apply, and returns the
// MachinePool as it then is. Those that it owned alone and that are not among them
// go. It never makes a MachinePool: one that is gone, or is another one of that
// name, is a conflict. So is an annotation that somebody else has set to another
// value, unless options have force; such a conflict names the annotation in a cause
// of type FieldManagerConflict.
func (c *Client) ApplyMachinePoolAnnotations(
	ctx context.Context, machinePool *clusterv1.MachinePool, annotations map[string]string, options metav1.ApplyOptions,
) (*clusterv1.MachinePool, error) {
	// The Go type of a MachinePool would claim fields that have no value here.
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
