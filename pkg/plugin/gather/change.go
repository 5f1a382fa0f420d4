// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package gather

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
)

// fieldManager is the field manager of the changes that a user requests with the plugin.
const fieldManager = "kubectl-nstance"

// Pool reads a pool. The error is a NotFoundError if there is no such pool.
func (g *Gatherer) Pool(ctx context.Context, name string) (*v1beta1.NstanceMachinePool, error) {
	s := &objects.Snapshot{Namespace: g.namespace}
	if err := g.readPools(ctx, s, name); err != nil {
		return nil, err
	}
	return &s.Pools.Items[0], nil
}

// ChangePool applies a merge patch to a pool, and returns the pool as it is then. A dry run stores
// nothing, and returns the pool as it would be.
func (g *Gatherer) ChangePool(ctx context.Context, name string, patch []byte, dryRun bool) (*v1beta1.NstanceMachinePool, error) {
	options := metav1.PatchOptions{FieldManager: fieldManager}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	pool, err := g.nstance.InfrastructureV1beta1().NstanceMachinePools(g.namespace).Patch(ctx, name, types.MergePatchType, patch, options)
	if err != nil {
		return nil, fmt.Errorf("change pool %s: %w", name, err)
	}
	return pool, nil
}

// ChangeNode applies a merge patch to a Node.
func (g *Gatherer) ChangeNode(ctx context.Context, name string, patch []byte) error {
	_, err := g.nodes.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return fmt.Errorf("change Node %s: %w", name, err)
	}
	return nil
}
