// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
)

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
	// The response is a Scale, which is not needed.
	return c.rest.Patch(types.MergePatchType).
		Namespace(machinePool.Namespace).Resource("machinepools").Name(machinePool.Name).SubResource("scale").
		VersionedParams(&options, c.codec).Body(patch).Do(ctx).Error()
}
