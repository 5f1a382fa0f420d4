// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package status

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
)

// onDemand returns the NstanceMachines that belong to no pool, sorted by group and name.
func (b *builder) onDemand() []Machine {
	var machines []Machine
	for i := range b.NstanceMachines.Items {
		machine := &b.NstanceMachines.Items[i]
		if objects.PoolOf(machine) == nil {
			machines = append(machines, b.single(machine))
		}
	}
	slices.SortFunc(machines, func(x, y Machine) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Group, y.Group), cmp.Compare(x.Machine, y.Machine))
	})
	return machines
}

func (b *builder) single(machine *v1beta1.NstanceMachine) Machine {
	running := meta.IsStatusConditionTrue(machine.Status.Conditions, v1beta1.ConditionReady)
	result := Machine{
		Instance:  b.instance(objects.ProviderIDOf(machine), machine, running),
		Namespace: machine.Namespace, Group: string(machine.Spec.GroupRef.Name),
		Shard:    cmp.Or(machine.Status.Shard, string(machine.Spec.Shard)),
		Problems: problems(machine.Status.Conditions),
	}
	if name := machine.Annotations[v1beta1.AnnotationPodName]; name != "" {
		result.Pod = machine.Annotations[v1beta1.AnnotationPodNamespace] + "/" + name
	}
	return result
}
