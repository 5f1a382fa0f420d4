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
	// byGroup has the machines of a group, wherever they are.
	byGroup = "group"
	// byPlacement has the machines of a group on a shard, see placementKey.
	byPlacement = "placement"
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
		return machine.Status.Shard, true
	}),
	byGroup: indexBy(func(machine *v1beta1.NstanceMachine) (string, bool) {
		return string(machine.Spec.GroupRef.Name), true
	}),
	byPlacement: indexBy(func(machine *v1beta1.NstanceMachine) (string, bool) {
		return placementKey(string(machine.Spec.GroupRef.Name), machine.Status.Shard), machine.Status.Shard != ""
	}),
	byInstance: indexBy(func(machine *v1beta1.NstanceMachine) (string, bool) {
		return instanceKey(machine.Status.Shard, machine.Status.InstanceID), machine.Status.InstanceID != ""
	}),
	byProviderID: indexBy(func(machine *v1beta1.NstanceMachine) (string, bool) {
		return providerid.Key(machine.Status.ProviderID), machine.Status.ProviderID != ""
	}),
}

// indexBy indexes the machines that have a value by it. Those of pools are not
// this controller's.
func indexBy(value func(*v1beta1.NstanceMachine) (string, bool)) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		machine, ok := obj.(*v1beta1.NstanceMachine)
		if !ok || poolMember(machine) {
			return nil, nil
		}
		if value, has := value(machine); has {
			return []string{value}, nil
		}
		return nil, nil
	}
}
