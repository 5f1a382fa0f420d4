// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolmachine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
)

func (c *Controller) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	pool, err := c.poolLister.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read pool %s from the cache: %w", key, err)
	}
	remembered := c.memories.get(pool.UID)
	if !c.upToDate(remembered) {
		return staleRetry, nil
	}
	seen, err := c.observe(pool, remembered)
	if err != nil {
		return 0, err
	}
	c.forget(seen)
	decided := plan(seen)
	c.memories.sight(pool.UID, decided.sighted)
	return decided.wait, errors.Join(
		c.create(ctx, seen, decided),
		c.removeMachines(ctx, decided.removeMachines),
		c.removeMembers(ctx, decided.removeMembers),
		c.removeOrphans(ctx, decided.removeOrphans))
}

// upToDate tells whether the cache shows every member that was made.
func (c *Controller) upToDate(remembered memory) bool {
	made := make([]cache.ObjectName, 0, len(remembered.had))
	for id := range remembered.had {
		made = append(made, c.key(id))
	}
	return c.writes.Seen(made...)
}

// forget drops from the memory what can do no harm any more.
func (c *Controller) forget(seen observation) {
	listed := map[string]sets.Set[string]{}
	for _, shard := range seen.memory.had {
		if listed[shard] == nil {
			listed[shard] = c.ids(shard, string(seen.pool.Spec.Group))
		}
	}
	c.memories.forget(seen.pool.UID, func(id, shard string) bool {
		_, is := seen.members[id]
		ids, known := listed[shard]
		return !is && known && !ids.Has(id)
	})
}

// ids are those of all instances that a shard is known to have of a group.
func (c *Controller) ids(shard, group string) sets.Set[string] {
	reported, _ := c.groups.Get(shard, group)
	ids := sets.New[string]()
	for _, instance := range reported.Instances {
		ids.Insert(instance.ID)
	}
	return ids
}

// observe reads the caches. What is remembered was read before: a member that goes
// in between was there.
func (c *Controller) observe(pool *v1beta1.NstanceMachinePool, remembered memory) (observation, error) {
	seen := observation{
		pool:         pool,
		memory:       remembered,
		machinePools: controller.Indexed[clusterv1.MachinePool](c.machinePoolIndex, capi.ByPool, pool.Name),
		members:      map[string]*v1beta1.NstanceMachine{},
		strangers:    sets.New[string](),
		machines:     map[string]*clusterv1.Machine{},
		now:          c.clock.Now(),
	}
	for _, member := range controller.Indexed[v1beta1.NstanceMachine](c.memberIndex, byPool, string(pool.UID)) {
		seen.members[member.Name] = member
	}
	for _, name := range poolNames(seen) {
		for _, machine := range controller.Indexed[clusterv1.Machine](c.machineIndex, byPoolName, name) {
			seen.machines[machine.Spec.InfrastructureRef.Name] = machine
		}
	}
	for _, group := range controller.Indexed[v1beta1.NstanceShardGroup](c.shardGroupIndex, byPool, string(pool.UID)) {
		seen.chosen = append(seen.chosen, group.Spec.RemoveFirst...)
		seen.listed = append(seen.listed, c.listed(pool, group)...)
	}
	slices.Sort(seen.chosen)
	seen.chosen = slices.Compact(seen.chosen)
	slices.SortFunc(seen.listed, func(a, b instance) int { return cmp.Compare(a.id, b.id) })

	var err error
	if seen.paused, err = c.pausedBy(pool, seen.machinePools); err != nil {
		return observation{}, err
	}
	return seen, c.observeStrangers(&seen)
}

// poolNames are the labels that Machines of the pool have. Without a MachinePool
// they are those of the members.
func poolNames(seen observation) []string {
	names := sets.New[string]()
	for _, machinePool := range seen.machinePools {
		names.Insert(capi.LabelValue(machinePool.Name))
	}
	if len(seen.machinePools) > 0 {
		return sets.List(names)
	}
	for _, member := range seen.members {
		names.Insert(member.Labels[clusterv1.MachinePoolNameLabel])
	}
	return sets.List(names)
}

// listed are the instances of a shard group that do not end, as far as its shard
// is known completely. The shard groups of a pool are its own: no other pool gets
// NstanceMachines of the same instances.
func (c *Controller) listed(pool *v1beta1.NstanceMachinePool, group *v1beta1.NstanceShardGroup) []instance {
	id := string(group.Spec.Shard)
	if leaving(group) || !slices.Contains(pool.Spec.Shards, group.Spec.Shard) || !c.groups.HasSynced(id) {
		return nil
	}
	reported, ok := c.groups.Get(id, string(group.Spec.Group))
	if !ok || reported.Deleting {
		return nil
	}
	var listed []instance
	for _, reported := range reported.Instances {
		if !reported.State.Ends() {
			listed = append(listed, instance{reported.ID, id})
		}
	}
	return listed
}

// observeStrangers looks for NstanceMachines that have the name of an instance or
// belong to a Machine, and are not members.
func (c *Controller) observeStrangers(seen *observation) error {
	look := func(name string) error {
		if seen.members[name] != nil {
			return nil
		}
		_, err := c.memberLister.Get(name)
		if err == nil {
			seen.strangers.Insert(name)
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("read NstanceMachine %s from the cache: %w", c.key(name), err)
		}
		return nil
	}
	var failed []error
	for _, instance := range seen.listed {
		failed = append(failed, look(instance.id))
	}
	for name := range seen.machines {
		failed = append(failed, look(name))
	}
	return errors.Join(failed...)
}

// pausedBy is what pauses a pool: its Cluster, itself, or a MachinePool that
// refers to it. "" when nothing does.
func (c *Controller) pausedBy(pool *v1beta1.NstanceMachinePool, machinePools []*clusterv1.MachinePool) (string, error) {
	cluster, err := c.clusterLister.Get(c.clusterName)
	if err != nil && !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("read Cluster %s from the cache: %w", c.key(c.clusterName), err)
	}
	if err != nil {
		cluster = nil
	}
	objects := []metav1.Object{pool}
	for _, machinePool := range machinePools {
		objects = append(objects, machinePool)
	}
	return controller.PausedBy(cluster, objects...), nil
}
