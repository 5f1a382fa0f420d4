// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"cmp"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	nstanceinformers "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/shard/informer"
)

// knownInstances returns a function that returns the instances that the objects of a
// namespace have, by shard.
func knownInstances(nstance nstanceinformers.Interface, namespace string) func() map[string]informer.Known {
	shardGroups := nstance.NstanceShardGroups().Lister().NstanceShardGroups(namespace)
	machines := nstance.NstanceMachines().Lister().NstanceMachines(namespace)
	return func() map[string]informer.Known {
		known := map[string]informer.Known{}
		// The lister of a cache returns no errors.
		groups, _ := shardGroups.List(labels.Everything())
		for _, group := range groups {
			shard := known[string(group.Spec.Shard)]
			shard.ProviderIDs = append(shard.ProviderIDs, group.Status.ProviderIDs...)
			known[string(group.Spec.Shard)] = shard
		}
		all, _ := machines.List(labels.Everything())
		for _, machine := range all {
			if id, instance := onDemandInstance(machine); instance != "" {
				shard := known[id]
				shard.OnDemand = append(shard.OnDemand, instance)
				known[id] = shard
			}
		}
		return known
	}
}

// onDemandInstance returns the shard and the id of the on-demand instance of an
// NstanceMachine, "" if it has none. A restored object may have them in its annotations
// alone.
func onDemandInstance(machine *v1beta1.NstanceMachine) (shard, instance string) {
	if meta.IsStatusConditionTrue(machine.Status.Conditions, v1beta1.ConditionServerDeleted) {
		return "", ""
	}
	requested, _, _ := strings.Cut(machine.Annotations[v1beta1.AnnotationRequest], "/")
	if machine.Status.RequestID != "" {
		requested = machine.Status.Shard
	}
	if requested == "" {
		return "", ""
	}
	return requested, cmp.Or(machine.Status.InstanceID, machine.Annotations[v1beta1.AnnotationInstanceID])
}
