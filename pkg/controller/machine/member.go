// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/shard"
)

// poolMember tells whether a machine stands for an instance of a pool. The shard
// has made it by itself, so nobody asks for it: its shard and its id are known from
// the start. What was asked for is none, whatever its labels say.
func poolMember(machine *v1beta1.NstanceMachine) bool {
	_, labelled := machine.Labels[clusterv1.MachinePoolNameLabel]
	return labelled && machine.Status.RequestID == ""
}

// shardOf is the shard of a machine, "" while none is chosen.
func shardOf(machine *v1beta1.NstanceMachine) string {
	if poolMember(machine) {
		return string(machine.Spec.Shard)
	}
	return machine.Status.Shard
}

// instanceOf is the id of a machine's instance, "" while there is none. A member of
// a pool has the name of its instance.
func instanceOf(machine *v1beta1.NstanceMachine) string {
	if poolMember(machine) {
		return machine.Name
	}
	return machine.Status.InstanceID
}

// listing is how a shard lists the managed instances of a group.
type listing struct {
	instances []shard.Instance
	// complete: what is not among them is not an instance of the group. Servers may
	// list nothing, and a shard that was not read yet has told nothing.
	complete bool
}

func (c *Controller) listing(shardID, group string) listing {
	found, ok := c.groups.Get(shardID, group)
	if !ok {
		// Without the group there is no instance of it.
		return listing{complete: c.groups.HasSynced(shardID)}
	}
	return listing{found.Instances, found.ListsInstances}
}

// find returns the instance of an id, nil when it is not listed, and tells whether
// it should be if there is one.
func (l listing) find(id string) (listed *shard.Instance, missing bool) {
	at, ok := slices.BinarySearchFunc(l.instances, id, func(instance shard.Instance, id string) int {
		return strings.Compare(instance.ID, id)
	})
	if !ok {
		return nil, l.complete
	}
	return &l.instances[at], false
}

// reports tells whether a member of a pool says already what its shard lists of it.
// One that goes does not care: its end is announced or asked for.
func reports(machine *v1beta1.NstanceMachine, listed *shard.Instance, missing bool) bool {
	if !machine.DeletionTimestamp.IsZero() || serverDeleted(machine) {
		return true
	}
	if listed == nil {
		return !missing
	}
	if listed.ProviderID != "" && listed.ProviderID != machine.Status.ProviderID {
		return false
	}
	reported := meta.FindStatusCondition(machine.Status.Conditions, v1beta1.ConditionReady)
	told := standing(listed)
	return reported != nil && reported.Reason == told.Reason &&
		// Who has announced the end has said more about it.
		(reported.Message == told.Message || told.Reason == v1beta1.ReasonServerDeleted)
}
