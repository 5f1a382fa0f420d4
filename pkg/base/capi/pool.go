// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// ByPool is the index of MachinePools by the result of PoolOf.
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

var machinePoolIndexers = cache.Indexers{ByPool: func(obj any) ([]string, error) {
	if machinePool, ok := obj.(*clusterv1.MachinePool); ok {
		if pool := PoolOf(machinePool); pool != "" {
			return []string{pool}, nil
		}
	}
	return nil, nil
}}
