// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/plugin/objects"
	pluginplan "nstance.dev/operator/pkg/plugin/plan"
	"nstance.dev/operator/pkg/server/groups"
	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/testing/tier"
)

// poolWorld is a pool on several shards, each with a server, and the objects that the operator keeps.
type poolWorld struct {
	random   *rand.Rand
	worlds   []*world
	machines bool
	// drifted is set if the instances are about to be replaced.
	drifted bool
	objects *objects.Snapshot
	shards  []v1beta1.Identifier
}

// newPoolWorld returns a pool whose shards are at rest after random changes, of the grants of some pools
// too. A pool with grants whose instances are about to be replaced has a rotation that is paused.
func newPoolWorld(t *testing.T, seed uint64) *poolWorld {
	t.Helper()
	p := &poolWorld{random: rand.New(rand.NewPCG(seed, 2))}
	p.machines = p.random.IntN(2) == 0
	p.drifted = p.random.IntN(4) == 0
	grants := rand.New(rand.NewPCG(seed, 4))
	granted := grants.IntN(2) == 0
	for n := range 1 + p.random.IntN(3) {
		w := newWorld(seed + uint64(n)<<32)
		if p.random.IntN(2) == 0 {
			w.agents = map[string]instance.Agent{}
		}
		if granted {
			w.grants = grants
		}
		// Ids of several shards differ.
		w.nextID = 1000 * (n + 1)
		for range 60 {
			w.disturb()
			actions, _ := plan(w.observe(), w.now)
			w.carryOut(actions, math.MaxInt)
		}
		w.size, w.deleted, w.removeFirst = p.random.IntN(7), false, map[string]bool{}
		require.NoError(t, w.rest())
		clear(w.tombstones)
		if granted && p.drifted {
			w.rotation = &groups.RotationGrant{}
		}
		p.worlds = append(p.worlds, w)
		p.shards = append(p.shards, v1beta1.Identifier('a'+rune(n)))
	}
	for _, w := range p.worlds {
		if p.drifted {
			w.infraConfigHash = "next"
		}
	}
	p.objects = p.snapshot()
	return p
}

// snapshot returns the objects of the pool as the operator keeps them.
func (p *poolWorld) snapshot() *objects.Snapshot {
	s := &objects.Snapshot{Now: planTime, Namespace: "nstance-system"}
	pool := v1beta1.NstanceMachinePool{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: "workers", UID: "pool"},
		Spec:       v1beta1.NstanceMachinePoolSpec{Group: "workers", Shards: p.shards},
	}
	if p.machines {
		pool.Status.InfrastructureMachineKind = v1beta1.MachineKind
	}
	owned := []metav1.OwnerReference{{APIVersion: v1beta1.SchemeGroupVersion.String(), Kind: v1beta1.PoolKind, Name: pool.Name, UID: pool.UID}}
	var total int32
	for n, w := range p.worlds {
		group := v1beta1.NstanceShardGroup{ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: v1beta1.ShardGroupName("workers", string(p.shards[n])), OwnerReferences: owned, Generation: 1,
		}}
		group.Spec = v1beta1.NstanceShardGroupSpec{Group: "workers", Shard: p.shards[n], Size: int32(w.size)}
		group.Status = v1beta1.NstanceShardGroupStatus{ObservedGeneration: 1, Replicas: ptr.To(int32(w.size)), DrainingReplicas: ptr.To[int32](0)}
		group.Status.Conditions = []metav1.Condition{{Type: v1beta1.ConditionShardReachable, Status: metav1.ConditionTrue, Reason: v1beta1.ReasonReachable}}
		for _, next := range deletionOrder(w.observe(), w.now) {
			id := "kwok:///" + string(p.shards[n]) + "/" + next.ID
			group.Status.ProviderIDs = append(group.Status.ProviderIDs, id)
			group.Status.DeletionOrder = append(group.Status.DeletionOrder, v1beta1.NextDeletion{Instance: next.ID, ProviderID: id, Reason: next.Reason})
			if p.machines {
				p.addMachine(s, owned, p.shards[n], next.ID, id)
			}
		}
		total += int32(w.size)
		s.ShardGroups.Items = append(s.ShardGroups.Items, group)
	}
	machinePool := clusterv1.MachinePool{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: pool.Name}}
	machinePool.Spec.Replicas = &total
	machinePool.Spec.Template.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: v1beta1.PoolKind, Name: pool.Name}
	s.Pools.Items, s.MachinePools.Items = []v1beta1.NstanceMachinePool{pool}, []clusterv1.MachinePool{machinePool}
	return s
}

// addMachine adds the Machine of an instance. Some are annotated for deletion.
func (p *poolWorld) addMachine(s *objects.Snapshot, owned []metav1.OwnerReference, shard v1beta1.Identifier, id, providerID string) {
	meta := metav1.ObjectMeta{Namespace: s.Namespace, Name: id, OwnerReferences: owned}
	member := v1beta1.NstanceMachine{ObjectMeta: meta, Spec: v1beta1.NstanceMachineSpec{Shard: shard, ProviderID: providerID}}
	machine := clusterv1.Machine{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: id}}
	machine.Spec.InfrastructureRef = clusterv1.ContractVersionedObjectReference{APIGroup: v1beta1.GroupName, Kind: v1beta1.MachineKind, Name: id}
	if !p.drifted && p.random.IntN(4) == 0 {
		machine.Annotations = map[string]string{clusterv1.DeleteMachineAnnotation: "yes"}
	}
	s.NstanceMachines.Items = append(s.NstanceMachines.Items, member)
	s.Machines.Items = append(s.Machines.Items, machine)
}

// scale lets a shard have another size, until it has deleted so many instances more than it has
// created, and returns the deleted instances.
func (w *world) scale(size int, removeFirst []string) (deleted []string, err error) {
	before, surplus := slices.Sorted(maps.Keys(w.records)), w.size-size
	w.size = size
	for _, id := range removeFirst {
		w.removeFirst[id] = true
	}
	managed := func(id string) bool { i := w.records[id]; return i == nil || !i.OnDemand }
	before = slices.DeleteFunc(before, func(id string) bool { return !managed(id) })
	for range 200 {
		s := w.observe()
		actions, next := plan(s, w.now)
		if err := check(s, actions, w.now); err != nil {
			return nil, err
		}
		w.carryOut(actions, math.MaxInt)
		deleted = slices.DeleteFunc(slices.Clone(before), func(id string) bool {
			i := w.records[id]
			return i != nil && i.Drain == nil && i.DeleteReason == ""
		})
		if len(deleted) >= surplus {
			return deleted, nil
		}
		for id := range w.vms {
			w.settle(id)
		}
		if len(actions) == 0 && !next.IsZero() {
			w.now = next
		}
	}
	return nil, fmt.Errorf("deletes %v of %d: %s", deleted, surplus, describe(w.observe().instances))
}

// The plan of the plugin names exactly the instances that the servers then delete, from what they
// report, and the sizes to which the pool gets.
func TestThePlanNamesExactlyWhatIsDeleted(t *testing.T) {
	for _, seed := range tier.Seeds(t, 500) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			p := newPoolWorld(t, seed)
			total := *p.objects.MachinePools.Items[0].Spec.Replicas
			replicas := p.random.Int32N(total + 3)
			planned, err := pluginplan.Build(p.objects, pluginplan.Options{Pool: "workers", Replicas: &replicas})
			require.NoError(t, err)
			require.Empty(t, planned.Blocked)
			var sum int32
			for n, w := range p.worlds {
				shard := planned.Shards[n]
				sum += shard.Next
				if !p.drifted {
					assert.True(t, shard.Exact, "shard %s is at rest", shard.Name)
				}
				assert.Zero(t, shard.Selected+shard.NotRunning)
				names := []string{}
				for _, leaves := range shard.Leaves {
					names = append(names, leaves.Name)
				}
				deleted, err := w.scale(int(shard.Next), shard.RemoveFirst)
				require.NoError(t, err)
				slices.Sort(names)
				assert.Equal(t, names, append([]string{}, deleted...), "shard %s: %d → %d, first %v", shard.Name, shard.Size, shard.Next, shard.RemoveFirst)
			}
			assert.Equal(t, replicas, sum)
		})
	}
}
