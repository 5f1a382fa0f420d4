// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/distribute"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
	"nstance.dev/operator/pkg/plugin/objects"
	pluginplan "nstance.dev/operator/pkg/plugin/plan"
	"nstance.dev/operator/pkg/testing/tier"
)

// The plugin has the sizes and the named instances that the operator writes, from objects alone: it
// sees neither the caches nor the shards.
func TestThePlanOfThePluginIsThePlanOfTheOperator(t *testing.T) {
	for _, seed := range tier.Seeds(t, 500) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			seen, snapshot := randomPool(r)
			replicas := *seen.machinePools[0].Spec.Replicas
			got, err := pluginplan.Build(snapshot, pluginplan.Options{Pool: seen.pool.Name, Replicas: &replicas})
			require.NoError(t, err)
			decided := planOf(seen)
			if decided.blocked != nil {
				assert.Equal(t, decided.blocked.message, got.Blocked)
				return
			}
			require.Empty(t, got.Blocked)
			for i, shard := range seen.shards {
				planned := got.Shards[i]
				assert.Equal(t, decided.sizes[i], planned.Next, "shard %s", shard.id)
				want := shard.group.Spec.RemoveFirst
				if at := slices.IndexFunc(decided.apply, func(w wantedShardGroup) bool { return string(w.spec.Shard) == shard.id }); at >= 0 {
					want = decided.apply[at].spec.RemoveFirst
				}
				assert.ElementsMatch(t, want, planned.RemoveFirst, "shard %s", shard.id)
			}
		})
	}
}

// randomPool returns a pool in a random state, as the operator observes it and as its objects describe
// it, with a random number of replicas in its MachinePool.
func randomPool(r *rand.Rand) (observation, *objects.Snapshot) {
	chance := func(percent int) bool { return r.IntN(100) < percent }
	var ids []v1beta1.Identifier
	for n := range 1 + r.IntN(4) {
		ids = append(ids, v1beta1.Identifier('a'+rune(n)))
	}
	pool, machines := newPool(ids...), chance(50)
	if machines {
		pool.Spec.MachineMode, pool.Status.InfrastructureMachineKind = v1beta1.MachineModeAlways, v1beta1.MachineKind
	}
	snapshot := &objects.Snapshot{Namespace: pool.Namespace}
	seen := observation{pool: pool}
	var total int32
	for _, id := range ids {
		size := r.Int32N(7)
		group := newShardGroup(pool, string(id), size)
		reported := &shard.Group{Key: "workers", Size: size, ListsInstances: true}
		state := shardState{id: string(id), configured: !chance(10), synced: true, size: size, reported: reported, group: group}
		if chance(10) {
			reported.MinSize = min(size, 1+r.Int32N(3))
		}
		for n := range size {
			instance := shard.Instance{ID: string(id) + strconv.Itoa(int(n)), State: shard.InstanceRunning, ProviderID: fmt.Sprintf("kwok:///%s/%d", id, n)}
			if machines && chance(15) {
				instance.State = shard.InstancePending
				if chance(50) {
					instance.ProviderID = ""
				}
			}
			reported.Instances = append(reported.Instances, instance)
			if instance.State == shard.InstanceRunning {
				reported.ProviderIDs = append(reported.ProviderIDs, instance.ProviderID)
				reported.DeletionOrder = append(reported.DeletionOrder, shard.NextDeletion{InstanceID: instance.ID})
			}
			if machines {
				seen.candidates = append(seen.candidates, addMachine(snapshot, pool, id, instance, chance(20))...)
			}
		}
		reported.ActualSize = int32(len(reported.ProviderIDs))
		group.Status.Replicas, group.Status.ProviderIDs = &reported.ActualSize, reported.ProviderIDs
		group.Status.DeletionOrder = controllers.ReportedDeletionOrder(reported)
		reachable := metav1.Condition{Type: v1beta1.ConditionShardReachable, Status: metav1.ConditionTrue, Reason: v1beta1.ReasonReachable}
		if reported.MinSize > 0 {
			group.Status.MinReplicas = ptr.To(reported.MinSize)
		}
		if !state.configured {
			reachable.Status, reachable.Reason = metav1.ConditionFalse, v1beta1.ReasonUnknownShard
		}
		group.Status.Conditions = []metav1.Condition{reachable}
		total += size
		seen.shards, seen.shardGroups = append(seen.shards, state), append(seen.shardGroups, group)
	}
	if chance(20) {
		for _, group := range seen.shardGroups {
			group.Spec.Imported = &v1beta1.Division{Replicas: total, Shards: ids}
		}
	}
	replicas := r.Int32N(total + 5)
	if chance(20) {
		replicas = total
	}
	seen.machinePools = []*clusterv1.MachinePool{machinePool("workers", &replicas)}
	for _, group := range seen.shardGroups {
		snapshot.ShardGroups.Items = append(snapshot.ShardGroups.Items, *group)
	}
	snapshot.Pools.Items = []v1beta1.NstanceMachinePool{*pool}
	snapshot.MachinePools.Items = []clusterv1.MachinePool{*seen.machinePools[0]}
	return seen, snapshot
}

// addMachine adds the Machine of an instance to a snapshot, and returns the deletion candidate if it
// is annotated for deletion.
func addMachine(s *objects.Snapshot, pool *v1beta1.NstanceMachinePool, id v1beta1.Identifier, instance shard.Instance, annotated bool) []distribute.Candidate {
	member := v1beta1.NstanceMachine{ObjectMeta: metav1.ObjectMeta{Namespace: pool.Namespace, Name: instance.ID}}
	member.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1beta1.SchemeGroupVersion.String(), Kind: v1beta1.PoolKind, Name: pool.Name, UID: pool.UID}}
	member.Spec.Shard, member.Spec.ProviderID = id, instance.ProviderID
	machine := clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: pool.Namespace, Name: instance.ID}}
	machine.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: v1beta1.MachineKind, Name: instance.ID}
	if annotated {
		machine.Annotations = map[string]string{clusterv1.DeleteMachineAnnotation: ""}
	}
	s.NstanceMachines.Items = append(s.NstanceMachines.Items, member)
	s.Machines.Items = append(s.Machines.Items, machine)
	if !annotated {
		return nil
	}
	return []distribute.Candidate{{ID: instance.ID, Shard: string(id), Annotated: true}}
}
