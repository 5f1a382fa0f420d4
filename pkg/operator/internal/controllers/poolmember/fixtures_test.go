// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard"
)

const (
	poolUID = "uid-workers"
)

// start is the time at which tests start.
var start = time.Unix(1_700_000_000, 0)

// newPool returns the pool "workers" of the group "workers" on these shards, whose
// instances have Machines.
func newPool(shards ...v1beta1.Identifier) *v1beta1.NstanceMachinePool {
	return &v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "workers", UID: poolUID, ResourceVersion: "1"},
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: "workers", Shards: shards},
		Status:     v1beta1.NstanceMachinePoolStatus{InfrastructureMachineKind: "NstanceMachine"},
	}
}

// newShardGroup returns the shard group of a pool on a shard, with the ids of the
// instances that scale-downs selected.
func newShardGroup(pool *v1beta1.NstanceMachinePool, id v1beta1.Identifier, selected ...string) *v1beta1.NstanceShardGroup {
	group := controllertest.NewShardGroup(pool, id)
	group.Spec.RemoveFirst = selected
	return group
}

// newMachinePool returns the MachinePool of the pool "workers".
func newMachinePool() *clusterv1.MachinePool {
	return controllertest.NewMachinePool("workers", "workers")
}

// stored returns the nstanceMachine of an instance on shard a as the API server has it.
func stored(id string) *v1beta1.NstanceMachine {
	nstanceMachine := newNstanceMachine(newPool("a"), newMachinePool(), instance{id, "a"})
	nstanceMachine.UID = types.UID("uid-" + id)
	return nstanceMachine
}

// foreign returns an NstanceMachine i-1 without a pool.
func foreign() *v1beta1.NstanceMachine {
	return &v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: controllertest.Namespace, Name: "i-1", UID: "uid-foreign"}}
}

// newMachine returns the Machine that Cluster API creates for an nstanceMachine.
func newMachine(name string) *clusterv1.Machine {
	machine := controllertest.NewMachine(name)
	machine.Labels = map[string]string{clusterv1.ClusterNameLabel: controllertest.ClusterName, clusterv1.MachinePoolNameLabel: capi.LabelValue("workers")}
	return machine
}

// byShard are the groups "workers" that shards report, by shard. All shards that are
// listed are configured and synced.
type byShard = map[string]shard.Group

// running returns the group "workers" with running instances.
func running(ids ...string) shard.Group {
	group := shard.Group{Key: "workers", ListsInstances: true}
	for _, id := range ids {
		group.Instances = append(group.Instances, shard.Instance{ID: id, State: shard.InstanceRunning})
	}
	return group
}

// inState returns the group "workers" with one instance in a state.
func inState(id string, state shard.InstanceState) shard.Group {
	return shard.Group{Key: "workers", ListsInstances: true, Instances: []shard.Instance{{ID: id, State: state}}}
}
