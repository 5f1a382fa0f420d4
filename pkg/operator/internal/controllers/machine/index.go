// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/providerid"
	"nstance.dev/operator/pkg/controller"
)

// The indexes of NstanceMachines. With them no change of a shard or of a Node
// iterates over the whole cache.
const (
	// byShard indexes NstanceMachines by shard, those without a shard by "".
	byShard = "shard"
	// byGroup indexes NstanceMachines by group, those of pools excluded.
	byGroup = "group"
	// byPlacement indexes NstanceMachines by group and shard, see placementKey. Those
	// of pools are excluded because the controller does not place them.
	byPlacement = "placement"
	// byPoolMembership indexes the NstanceMachines of pools by the same key.
	byPoolMembership = "poolMembership"
	// byInstance indexes NstanceMachines by instance, see instanceKey.
	byInstance = "instance"
	// byRequest indexes NstanceMachines by the create request in the status, see
	// requestKey.
	byRequest = "request"
	// byProviderID indexes NstanceMachines by the key of the provider id that the
	// shard reported.
	byProviderID = "machineProviderID"
)

// placementKey, instanceKey and requestKey are unambiguous because identifiers have no
// slash.
func placementKey(group, shard string) string { return group + "/" + shard }
func instanceKey(shard, id string) string     { return shard + "/" + id }
func requestKey(shard, id string) string      { return shard + "/" + id }

var indexers = cache.Indexers{
	byShard: indexBy(func(nstanceMachine *v1beta1.NstanceMachine) (string, bool) {
		return locate(nstanceMachine).shardID, true
	}),
	byGroup: indexBy(func(nstanceMachine *v1beta1.NstanceMachine) (string, bool) {
		return string(nstanceMachine.Spec.GroupRef.Name), !locate(nstanceMachine).poolMember
	}),
	byPlacement: indexBy(func(nstanceMachine *v1beta1.NstanceMachine) (string, bool) {
		at := locate(nstanceMachine)
		return placementKey(string(nstanceMachine.Spec.GroupRef.Name), at.shardID), at.shardID != "" && !at.poolMember
	}),
	byPoolMembership: indexBy(func(nstanceMachine *v1beta1.NstanceMachine) (string, bool) {
		at := locate(nstanceMachine)
		return placementKey(string(nstanceMachine.Spec.GroupRef.Name), at.shardID), at.poolMember
	}),
	byInstance: indexBy(func(nstanceMachine *v1beta1.NstanceMachine) (string, bool) {
		at := locate(nstanceMachine)
		return instanceKey(at.shardID, at.instanceID), at.instanceID != ""
	}),
	byRequest: indexBy(func(nstanceMachine *v1beta1.NstanceMachine) (string, bool) {
		return requestKey(nstanceMachine.Status.Shard, nstanceMachine.Status.RequestID), nstanceMachine.Status.RequestID != ""
	}),
	byProviderID: indexBy(func(nstanceMachine *v1beta1.NstanceMachine) (string, bool) {
		return providerid.Key(nstanceMachine.Status.ProviderID), nstanceMachine.Status.ProviderID != ""
	}),
}

// indexBy returns an index function for a value that not every NstanceMachine has.
func indexBy(value func(*v1beta1.NstanceMachine) (string, bool)) cache.IndexFunc {
	return func(obj any) ([]string, error) {
		nstanceMachine, ok := obj.(*v1beta1.NstanceMachine)
		if !ok {
			return nil, nil
		}
		if value, has := value(nstanceMachine); has {
			return []string{value}, nil
		}
		return nil, nil
	}
}

func (c *Controller) indexed(index, value string) []*v1beta1.NstanceMachine {
	return controller.Indexed[v1beta1.NstanceMachine](c.nstanceMachineIndex, index, value)
}
