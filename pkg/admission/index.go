// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package admission

import (
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// poolKind is the kind that MachinePools refer to.
const poolKind = "NstanceMachinePool"

// The indexes that requests are judged by. The informers are shared, and so are
// the names of their indexes.
const (
	// byGroup finds pools by their group.
	byGroup = "admission.group"
	// byInfrastructure finds MachinePools by the pool that they refer to.
	byInfrastructure = "admission.infrastructure"
)

var (
	poolIndexers = cache.Indexers{byGroup: func(obj any) ([]string, error) {
		if pool, ok := obj.(*v1beta1.NstanceMachinePool); ok {
			return []string{string(pool.Spec.Group)}, nil
		}
		return nil, nil
	}}
	machinePoolIndexers = cache.Indexers{byInfrastructure: func(obj any) ([]string, error) {
		machinePool, ok := obj.(*clusterv1.MachinePool)
		if !ok {
			return nil, nil
		}
		if name := infrastructureOf(machinePool); name != "" {
			return []string{name}, nil
		}
		return nil, nil
	}}
)

// infrastructureOf is the name of the pool that a MachinePool refers to, "" when
// it refers to another kind.
func infrastructureOf(machinePool *clusterv1.MachinePool) string {
	ref := machinePool.Spec.Template.Spec.InfrastructureRef
	if ref.Kind != poolKind || ref.APIGroup != v1beta1.GroupName {
		return ""
	}
	return ref.Name
}

// poolsOf are the pools of a group.
func (v *Validator) poolsOf(group v1beta1.Identifier) []*v1beta1.NstanceMachinePool {
	return indexed[v1beta1.NstanceMachinePool](v.poolIndex, byGroup, string(group))
}

// machinePoolsOf are the MachinePools that refer to a pool.
func (v *Validator) machinePoolsOf(pool string) []*clusterv1.MachinePool {
	return indexed[clusterv1.MachinePool](v.machinePoolIndex, byInfrastructure, pool)
}

func indexed[T any](indexer cache.Indexer, index, value string) []*T {
	found, err := indexer.ByIndex(index, value)
	if err != nil {
		// Only an index that was never added gives an error.
		panic(err)
	}
	objects := make([]*T, 0, len(found))
	for _, obj := range found {
		if object, ok := obj.(*T); ok {
			objects = append(objects, object)
		}
	}
	return objects
}
