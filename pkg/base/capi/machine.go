// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package capi

import (
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// NstanceMachineOf returns the name of the NstanceMachine that a Machine refers to, or
// "" if it refers to another kind. The NstanceMachine is in the same namespace.
func NstanceMachineOf(machine *clusterv1.Machine) string {
	ref := machine.Spec.InfrastructureRef
	if ref.Kind != v1beta1.MachineKind || ref.APIGroup != v1beta1.GroupName {
		return ""
	}
	return ref.Name
}
