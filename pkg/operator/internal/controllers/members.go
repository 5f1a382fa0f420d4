// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/identifier"
	"nstance.dev/operator/pkg/controller"
	informers "nstance.dev/operator/pkg/generated/informers/externalversions/infrastructure/v1beta1"
)

const (
	// byPoolName indexes shard groups by the name of the pool that owns them.
	byPoolName = "poolName"
	// byPoolUID indexes NstanceMachines by the UID of their pool.
	byPoolUID = "poolUID"
)

// Members finds the shard groups and NstanceMachines of a pool in the caches of informers.
type Members struct {
	shardGroups, nstanceMachines cache.Indexer
}

// NewMembers indexes shard groups and NstanceMachines by their pool. Controllers that share
// the informers share the indexes, because the indexes of many pools take memory.
func NewMembers(all informers.Interface) (*Members, error) {
	shardGroups, nstanceMachines := all.NstanceShardGroups().Informer(), all.NstanceMachines().Informer()
	if err := controller.IndexOnce(shardGroups, byPoolName, indexByPoolName); err != nil {
		return nil, fmt.Errorf("index NstanceShardGroups by pool: %w", err)
	}
	if err := controller.IndexOnce(nstanceMachines, byPoolUID, indexByPoolUID); err != nil {
		return nil, fmt.Errorf("index NstanceMachines by pool: %w", err)
	}
	return &Members{shardGroups: shardGroups.GetIndexer(), nstanceMachines: nstanceMachines.GetIndexer()}, nil
}

// ShardGroups returns the shard groups of a pool, sorted by name. It excludes shard groups of
// a former pool with the same name.
func (m *Members) ShardGroups(pool *v1beta1.NstanceMachinePool) []*v1beta1.NstanceShardGroup {
	groups := slices.DeleteFunc(m.ShardGroupsOfName(pool.Name),
		func(group *v1beta1.NstanceShardGroup) bool { return !metav1.IsControlledBy(group, pool) })
	slices.SortFunc(groups, func(a, b *v1beta1.NstanceShardGroup) int { return strings.Compare(a.Name, b.Name) })
	return groups
}

// ShardGroupsOfName returns the shard groups that are owned by any pool of this name.
func (m *Members) ShardGroupsOfName(pool string) []*v1beta1.NstanceShardGroup {
	return controller.Indexed[v1beta1.NstanceShardGroup](m.shardGroups, byPoolName, pool)
}

// NstanceMachines returns the NstanceMachines of a pool, sorted by name.
func (m *Members) NstanceMachines(pool *v1beta1.NstanceMachinePool) []*v1beta1.NstanceMachine {
	found := controller.Indexed[v1beta1.NstanceMachine](m.nstanceMachines, byPoolUID, string(pool.UID))
	slices.SortFunc(found, func(a, b *v1beta1.NstanceMachine) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// PoolOwning returns the reference to the pool that owns a shard group, nil without such an
// owner.
func PoolOwning(group *v1beta1.NstanceShardGroup) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(group)
	if owner == nil || owner.Kind != v1beta1.PoolKind {
		return nil
	}
	return owner
}

func indexByPoolName(obj any) ([]string, error) {
	if group, ok := obj.(*v1beta1.NstanceShardGroup); ok {
		if owner := PoolOwning(group); owner != nil {
			return []string{owner.Name}, nil
		}
	}
	return nil, nil
}

// PoolOf returns the reference to the pool that an NstanceMachine is a member of, nil if it is
// not a pool member. The pool is an owner; the controller is the Machine
// (docs/capi.md#ownership).
func PoolOf(machine *v1beta1.NstanceMachine) *metav1.OwnerReference {
	for i, owner := range machine.OwnerReferences {
		if version, err := schema.ParseGroupVersion(owner.APIVersion); err == nil &&
			version.Group == v1beta1.GroupName && owner.Kind == v1beta1.PoolKind {
			return &machine.OwnerReferences[i]
		}
	}
	return nil
}

func indexByPoolUID(obj any) ([]string, error) {
	if machine, ok := obj.(*v1beta1.NstanceMachine); ok {
		if owner := PoolOf(machine); owner != nil {
			return []string{string(owner.UID)}, nil
		}
	}
	return nil, nil
}

const (
	// byGroup indexes pools by group.
	byGroup = "group"
	// byNamedShard indexes pools by the shards that they name.
	byNamedShard = "namedShard"
)

// Pools finds pools in the cache of an informer by their groups and shards.
type Pools struct {
	indexer cache.Indexer
}

// NewPools indexes the pools of informer by group and shard, unless another controller has added the
// indexes.
func NewPools(informer cache.SharedIndexInformer) (*Pools, error) {
	if err := controller.IndexOnce(informer, byGroup, indexByGroup); err != nil {
		return nil, fmt.Errorf("index NstanceMachinePools by group: %w", err)
	}
	if err := controller.IndexOnce(informer, byNamedShard, indexByNamedShard); err != nil {
		return nil, fmt.Errorf("index NstanceMachinePools by shard: %w", err)
	}
	return &Pools{indexer: informer.GetIndexer()}, nil
}

// OfGroup returns the pools of a group. There should be at most one pool.
func (p *Pools) OfGroup(group string) []*v1beta1.NstanceMachinePool {
	return controller.Indexed[v1beta1.NstanceMachinePool](p.indexer, byGroup, group)
}

// OfShard returns the pools that name a shard.
func (p *Pools) OfShard(shard string) []*v1beta1.NstanceMachinePool {
	return controller.Indexed[v1beta1.NstanceMachinePool](p.indexer, byNamedShard, shard)
}

func indexByNamedShard(obj any) ([]string, error) {
	pool, ok := obj.(*v1beta1.NstanceMachinePool)
	if !ok {
		return nil, nil
	}
	shards := make([]string, len(pool.Spec.Shards))
	for i, shard := range pool.Spec.Shards {
		shards[i] = string(shard)
	}
	return shards, nil
}

func indexByGroup(obj any) ([]string, error) {
	if pool, ok := obj.(*v1beta1.NstanceMachinePool); ok {
		return []string{string(pool.Spec.Group)}, nil
	}
	return nil, nil
}

const (
	// byShard indexes shard groups by their shard.
	byShard = "shard"
	// byGroupOfShard indexes shard groups by the group in their names.
	byGroupOfShard = "groupOfShard"
)

// ShardGroups finds shard groups in the cache of an informer by their groups and shards.
type ShardGroups struct {
	indexer cache.Indexer
}

// NewShardGroups indexes the shard groups of informer by group and shard, unless another controller
// has added the indexes.
func NewShardGroups(informer cache.SharedIndexInformer) (*ShardGroups, error) {
	if err := controller.IndexOnce(informer, byShard, indexByShard); err != nil {
		return nil, fmt.Errorf("index NstanceShardGroups by shard: %w", err)
	}
	if err := controller.IndexOnce(informer, byGroupOfShard, indexByGroupOfShard); err != nil {
		return nil, fmt.Errorf("index NstanceShardGroups by group: %w", err)
	}
	return &ShardGroups{indexer: informer.GetIndexer()}, nil
}

// OfGroup returns the shard groups on all shards whose names contain a group
// (v1beta1.ShardGroupName).
func (s *ShardGroups) OfGroup(group string) []*v1beta1.NstanceShardGroup {
	return controller.Indexed[v1beta1.NstanceShardGroup](s.indexer, byGroupOfShard, group)
}

// OfShard returns the shard groups of all groups on a shard.
func (s *ShardGroups) OfShard(shard string) []*v1beta1.NstanceShardGroup {
	return controller.Indexed[v1beta1.NstanceShardGroup](s.indexer, byShard, shard)
}

func indexByShard(obj any) ([]string, error) {
	if group, ok := obj.(*v1beta1.NstanceShardGroup); ok {
		return []string{string(group.Spec.Shard)}, nil
	}
	return nil, nil
}

func indexByGroupOfShard(obj any) ([]string, error) {
	shardGroup, ok := obj.(*v1beta1.NstanceShardGroup)
	if !ok {
		return nil, nil
	}
	group, _, ok := strings.Cut(shardGroup.Name, identifier.Separator)
	if !ok {
		return nil, nil
	}
	return []string{group}, nil
}
