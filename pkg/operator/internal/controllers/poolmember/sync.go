// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmember

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

func (c *Controller) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	pool, err := controller.GetCached(c.poolLister.Get, "pool", key)
	if pool == nil || err != nil {
		return 0, err
	}
	state := c.states.get(pool.UID)
	if created := c.created(state); !c.writes.CaughtUp(created...) {
		return c.writes.Delay(created...), nil
	}
	observed, err := c.observe(pool, state)
	if err != nil {
		return 0, err
	}
	c.dropDeleted(observed)
	d := plan(observed)
	c.states.setOrphaned(pool.UID, d.orphanedSince)
	return d.requeueAfter, errors.Join(
		c.create(ctx, observed, d),
		c.deleteSelected(ctx, pool, d.deleteSelected),
		c.deleteMachines(ctx, d.deleteMachines),
		c.release(ctx, d.release),
		c.deleteWithoutMachine(ctx, d.deleteWithoutMachine),
		c.deleteOrphans(ctx, d.deleteOrphans))
}

// created returns the keys of the NstanceMachines that were created.
func (c *Controller) created(state syncState) []cache.ObjectName {
	created := make([]cache.ObjectName, 0, len(state.shardOf))
	for id := range state.shardOf {
		created = append(created, c.key(id))
	}
	return created
}

// dropDeleted drops instances from the state that have no NstanceMachine and that their shard
// no longer lists.
func (c *Controller) dropDeleted(observed observation) {
	listed := map[string]sets.Set[string]{}
	for _, shard := range observed.state.shardOf {
		if listed[shard] == nil {
			listed[shard] = c.ids(shard, string(observed.pool.Spec.Group))
		}
	}
	c.states.dropInstances(observed.pool.UID, func(id, shard string) bool {
		_, has := observed.nstanceMachines[id]
		ids, known := listed[shard]
		return !has && known && !ids.Has(id)
	})
}

// ids returns the ids of all instances of a group that a shard reported.
func (c *Controller) ids(shard, group string) sets.Set[string] {
	reported, _ := c.groups.Get(shard, group)
	ids := sets.New[string]()
	for _, instance := range reported.Instances {
		ids.Insert(instance.ID)
	}
	return ids
}

// observe reads the caches. The state was read before them, so that it contains
// NstanceMachines that are deleted in between.
func (c *Controller) observe(pool *v1beta1.NstanceMachinePool, state syncState) (observation, error) {
	observed := observation{
		pool:            pool,
		state:           state,
		machinePools:    controller.Indexed[clusterv1.MachinePool](c.machinePoolIndex, capi.ByPool, pool.Name),
		nstanceMachines: map[string]*v1beta1.NstanceMachine{},
		foreign:         sets.New[string](),
		machines:        map[string]*clusterv1.Machine{},
		now:             c.clock.Now(),
	}
	for _, nstanceMachine := range c.members.NstanceMachines(pool) {
		observed.nstanceMachines[nstanceMachine.Name] = nstanceMachine
	}
	for _, name := range poolNames(observed) {
		for _, machine := range controller.Indexed[clusterv1.Machine](c.machineIndex, byPoolName, name) {
			observed.machines[machine.Spec.InfrastructureRef.Name] = machine
		}
	}
	for _, group := range c.members.ShardGroups(pool) {
		observed.selected = append(observed.selected, group.Spec.RemoveFirst...)
		observed.instances = append(observed.instances, c.instances(pool, group)...)
	}
	slices.Sort(observed.selected)
	observed.selected = slices.Compact(observed.selected)
	slices.SortFunc(observed.instances, func(a, b instance) int { return cmp.Compare(a.id, b.id) })

	var err error
	if observed.paused, err = c.pausedBy(pool, observed.machinePools); err != nil {
		return observation{}, err
	}
	return observed, c.observeForeign(&observed)
}

// poolNames returns the labels that name the MachinePools of the pool's Machines. Without a
// MachinePool it returns the labels of the NstanceMachines.
func poolNames(observed observation) []string {
	names := sets.New[string]()
	for _, machinePool := range observed.machinePools {
		names.Insert(capi.LabelValue(machinePool.Name))
	}
	if len(observed.machinePools) > 0 {
		return sets.List(names)
	}
	for _, nstanceMachine := range observed.nstanceMachines {
		names.Insert(nstanceMachine.Labels[clusterv1.MachinePoolNameLabel])
	}
	return sets.List(names)
}

// instances returns the instances of a shard group that are not being terminated, nil if the
// shard is not synced. A shard group has one owner, so no other pool creates NstanceMachines
// for the same instances.
func (c *Controller) instances(pool *v1beta1.NstanceMachinePool, group *v1beta1.NstanceShardGroup) []instance {
	id := string(group.Spec.Shard)
	if deleting(group) || !slices.Contains(pool.Spec.Shards, group.Spec.Shard) || !c.groups.HasSynced(id) {
		return nil
	}
	reported, ok := c.groups.Get(id, string(group.Spec.Group))
	if !ok || reported.Deleting {
		return nil
	}
	var found []instance
	for _, reported := range reported.Instances {
		if !reported.State.IsTerminating() {
			found = append(found, instance{reported.ID, id})
		}
	}
	return found
}

// observeForeign finds NstanceMachines outside the pool that have the name of an
// instance or belong to a Machine of the pool.
func (c *Controller) observeForeign(observed *observation) error {
	check := func(name string) error {
		if observed.nstanceMachines[name] != nil {
			return nil
		}
		found, err := controller.GetCached(c.nstanceMachineLister.Get, "NstanceMachine", c.key(name))
		if found != nil {
			observed.foreign.Insert(name)
		}
		return err
	}
	var failed []error
	for _, instance := range observed.instances {
		failed = append(failed, check(instance.id))
	}
	for name := range observed.machines {
		failed = append(failed, check(name))
	}
	return errors.Join(failed...)
}

// pausedBy returns what pauses a pool: its Cluster, the pool itself, or a MachinePool that
// refers to it; "" if nothing is paused.
func (c *Controller) pausedBy(pool *v1beta1.NstanceMachinePool, machinePools []*clusterv1.MachinePool) (string, error) {
	cluster, err := controller.GetCached(c.clusterLister.Get, "Cluster", c.cluster)
	if err != nil {
		return "", err
	}
	objects := []metav1.Object{pool}
	for _, machinePool := range machinePools {
		objects = append(objects, machinePool)
	}
	return controllers.PausedBy(cluster, objects...), nil
}

// syncState is the state that a sync of a pool passes to the next sync. A restart may lose it.
type syncState struct {
	// shardOf has the shard of each instance that has or had an NstanceMachine, by instance
	// id. Ids are never reused. An entry is dropped when the NstanceMachine was deleted and
	// the shard no longer lists the instance.
	shardOf map[string]string
	// orphanedSince is when each Machine was first observed without its NstanceMachine.
	orphanedSince map[types.UID]time.Time
	// reportedConflicts are the ids of instances for whose name conflicts an event was
	// recorded.
	reportedConflicts sets.Set[string]
}

// syncStates has the states of all pools, by UID. The zero value is empty.
type syncStates struct {
	mu     sync.Mutex
	byPool map[types.UID]syncState
}

// update calls change with the state of a pool while mu is locked.
func (s *syncStates) update(pool types.UID, change func(*syncState)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state, ok := s.byPool[pool]
	if !ok {
		state = syncState{shardOf: map[string]string{}, reportedConflicts: sets.New[string]()}
	}
	change(&state)
	if len(state.shardOf)+len(state.orphanedSince)+len(state.reportedConflicts) == 0 {
		delete(s.byPool, pool)
		return
	}
	if s.byPool == nil {
		s.byPool = make(map[types.UID]syncState)
	}
	s.byPool[pool] = state
}

// get returns a copy of the state of a pool, without reportedConflicts.
func (s *syncStates) get(pool types.UID) syncState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return syncState{shardOf: maps.Clone(s.byPool[pool].shardOf), orphanedSince: s.byPool[pool].orphanedSince}
}

// anyNew reports whether an instance never had an NstanceMachine and is not being terminated.
func (s *syncStates) anyNew(pool types.UID, instances []shard.Instance) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(instances, func(instance shard.Instance) bool {
		_, had := s.byPool[pool].shardOf[instance.ID]
		return !had && !instance.State.IsTerminating()
	})
}

// addInstance records that an instance of a shard has an NstanceMachine.
func (s *syncStates) addInstance(pool types.UID, id, shard string) {
	s.update(pool, func(state *syncState) { state.shardOf[id] = shard })
}

// dropInstances drops the instances for which drop returns true.
func (s *syncStates) dropInstances(pool types.UID, drop func(id, shard string) bool) {
	s.update(pool, func(state *syncState) { maps.DeleteFunc(state.shardOf, drop) })
}

// setOrphaned replaces the times since which Machines have had no NstanceMachine.
func (s *syncStates) setOrphaned(pool types.UID, since map[types.UID]time.Time) {
	s.update(pool, func(state *syncState) { state.orphanedSince = since })
}

// setConflicts replaces the ids whose names are in use, and returns the new ones.
func (s *syncStates) setConflicts(pool types.UID, ids []string) (added []string) {
	s.update(pool, func(state *syncState) {
		for _, id := range ids {
			if !state.reportedConflicts.Has(id) {
				added = append(added, id)
			}
		}
		state.reportedConflicts = sets.New(ids...)
	})
	return added
}

// drop drops the state of a pool.
func (s *syncStates) drop(pool types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byPool, pool)
}
