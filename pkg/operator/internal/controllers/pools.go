// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"fmt"

	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
)

// byGroup is the index of pools by group.
const byGroup = "group"

// Pools finds pools in the cache of an informer by their groups.
type Pools struct {
	indexer cache.Indexer
}

// NewPools indexes the pools of informer by group. Several controllers may share one
// informer: the index is added once, because the indexes of many pools take memory.
func NewPools(informer cache.SharedIndexInformer) (*Pools, error) {
	if err := controller.IndexOnce(informer, byGroup, indexByGroup); err != nil {
		return nil, fmt.Errorf("index NstanceMachinePools by group: %w", err)
	}
	return &Pools{indexer: informer.GetIndexer()}, nil
}

// OfGroup returns the pools of a group. There should be at most one.
func (p *Pools) OfGroup(group string) []*v1beta1.NstanceMachinePool {
	return controller.Indexed[v1beta1.NstanceMachinePool](p.indexer, byGroup, group)
}

func indexByGroup(obj any) ([]string, error) {
	if pool, ok := obj.(*v1beta1.NstanceMachinePool); ok {
		return []string{string(pool.Spec.Group)}, nil
	}
	return nil, nil
}
