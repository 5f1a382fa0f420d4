// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controller

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// PoolOf refers to the pool that an NstanceMachine is a member of, nil when it is
// of none. The pool is an owner; the controller is the Machine
// (docs/capi.md#ownership).
func PoolOf(machine *v1beta1.NstanceMachine) *metav1.OwnerReference {
	for i, owner := range machine.OwnerReferences {
		if version, err := schema.ParseGroupVersion(owner.APIVersion); err == nil &&
			version.Group == v1beta1.GroupName && owner.Kind == v1beta1.PoolKind {
			return &machine.OwnerReferences[i]
		}
	}
	return nil
}

// PoolUIDOf is a cache.IndexFunc of NstanceMachines by the UID of their pool.
func PoolUIDOf(obj any) ([]string, error) {
	if machine, ok := obj.(*v1beta1.NstanceMachine); ok {
		if owner := PoolOf(machine); owner != nil {
			return []string{string(owner.UID)}, nil
		}
	}
	return nil, nil
}
