// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/providerid"
)

// The indexers that machines are looked up by, so that no news of a shard or of a
// Node ever walks the whole cache.
const (
	// byShard has the machines of a shard, and under "" those that have none yet.
	byShard = "shard"
	// byGroup has the machines of a group, wherever they are, members of pools left
	// out.
	byGroup = "group"
	// byPlacement has the machines of a group on a shard, see placementKey, members
	// of pools left out: those are not placed.
	byPlacement = "placement"
	// byMembership has the members of pools by the same key.
	byMembership = "membership"
	// byInstance has the machine of an instance, see instanceKey.
	byInstance = "instance"
	// byProviderID has machines by the key of the shard's provider id.
	byProviderID = "machineProviderID"
)

// placementKey and instanceKey are unambiguous because identifiers have no slash.
func placementKey(group, shard string) string { return group + "/" + shard }
func instanceKey(shard, id string) string     { return shard + "/" + id }

var machineIndexers = cache.Indexers{
	byShard: indexBy(func(machine *v1beta1.NstanceMachine) (string, bool) {
		return shardOf(machine), true
	}),
	byGroup: indexBy(func(machine *v1beta1.NstanceMachine) (string, bool) {
		return string(machine.Spec.GroupRef.Name), !poolMember(machine)
	}),
	byPlacement: indexBy(func(machine *v1beta1.NstanceMachine) (string, bool) {
		return placementKey(string(machine.Spec.GroupRef.Name), shardOf(machine)), shardOf(machine) != "" && !poolMember(machine)
	}),
	byMembership: indexBy(func(machine *v1beta1.NstanceMachine) (string, bool) {
		return placementKey(string(machine.Spec.GroupRef.Name), shardOf(machine)), poolMember(machine)
	}),
	byInstance: indexBy(func(machine *v1beta1.NstanceMachine) (string, bool) {
		return instanceKey(shardOf(machine), instanceOf(machine)), instanceOf(machine) != ""
	}),
	byProviderID: indexBy(func(machine *v1beta1.NstanceMachine) (string, bool) {
		return providerid.Key(machine.Status.ProviderID), machine.Status.ProviderID != ""
	}),
}

// indexBy indexes the machines that have a value by it.
func indexBy(value func(*v1beta1.NstanceMachine) (string, bool)) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		machine, ok := obj.(*v1beta1.NstanceMachine)
		if !ok {
			return nil, nil
		}
		if value, has := value(machine); has {
			return []string{value}, nil
		}
		return nil, nil
	}
}
