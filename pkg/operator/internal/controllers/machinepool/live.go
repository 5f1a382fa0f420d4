// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/base/distribute"
	"nstance.dev/operator/pkg/base/poolplan"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// This file has every read of the API server. A sync reads caches. Before it makes a size
// smaller, lets a shard replace instances, selects instances or removes the finalizer, it also reads
// objects that may be stale there.

// shrinks reports whether a decision makes a size smaller or deletes a shard group of a pool
// that is not being deleted.
func shrinks(observed observation, d decision) bool {
	if !observed.pool.DeletionTimestamp.IsZero() {
		return false
	}
	return len(d.deleteShardGroups) > 0 || slices.ContainsFunc(d.apply, func(want wantedShardGroup) bool {
		at := slices.IndexFunc(observed.distributable, func(s distribute.Shard) bool { return s.ID == string(want.spec.Shard) })
		return at >= 0 && want.spec.Size < observed.distributable[at].Size
	})
}

// startsReplacements reports whether a decision lets a shard start replacements that it could not start
// before, which the user may have forbidden since the cache was filled. Without a policy a shard replaces
// instances at any time.
func startsReplacements(observed observation, d decision) bool {
	return slices.ContainsFunc(d.apply, func(want wantedShardGroup) bool {
		at := slices.IndexFunc(observed.shards, func(s shardState) bool { return s.id == string(want.spec.Shard) })
		if at < 0 {
			// The shard group of a shard that the pool no longer names keeps its grant until it is deleted.
			return false
		}
		grant, group := want.spec.Rotation, observed.shards[at].group
		switch {
		case grant == nil:
			return group != nil && group.Spec.Rotation != nil
		case group == nil:
			return grant.UpToDate > 0
		}
		return grant.UpToDate > 0 && !equality.Semantic.DeepEqual(grant, group.Spec.Rotation)
	})
}

// isUpToDate reports whether the caches have the pool, the MachinePool and the shard groups that the
// API server has. The caches of two kinds may have different ages, above all in a new leader: shard
// groups that are newer than the replicas, or than the shards of the pool, would be made smaller or
// deleted. A shard group may have lost an instance that the cache still counts, and a shard would
// lose an instance for it that nobody wanted to lose.
func (c *Controller) isUpToDate(ctx context.Context, observed observation) (bool, error) {
	pool, err := c.pools.Get(ctx, observed.pool.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read pool %s: %w", klog.KObj(observed.pool), err)
	case pool.UID != observed.pool.UID || pool.Generation != observed.pool.Generation || controllers.PausedBy(nil, pool) != "":
		return false, nil
	}
	for _, cached := range observed.machinePools {
		machinePool, err := c.machinePools.Get(ctx, cached.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("read MachinePool %s: %w", klog.KObj(cached), err)
		case machinePool.UID != cached.UID || !ptr.Equal(machinePool.Spec.Replicas, cached.Spec.Replicas) ||
			!machinePool.DeletionTimestamp.IsZero() || controllers.PausedBy(nil, machinePool) != "":
			return false, nil
		}
	}
	for _, shard := range observed.shards {
		if current, err := c.isCurrent(ctx, observed.pool, shard); err != nil || !current {
			return false, err
		}
	}
	return true, nil
}

// needsCandidates reports whether the sync scales down a pool with Machines, so that
// it matters which instances are deletion candidates.
func needsCandidates(observed observation) bool {
	if observed.paused != "" || !observed.pool.DeletionTimestamp.IsZero() || !hasMachines(observed) ||
		len(observed.machinePools) != 1 || checkPreconditions(observed) != nil {
		return false
	}
	return distribute.Surplus(distribute.Sizes(observed.distributable), *observed.machinePools[0].Spec.Replicas) > 0
}

// readCandidates reads the replicas and the deletion candidates into observed. The caches
// of MachinePools and Machines may have different ages. A client annotates the
// Machine first and then lowers the replicas, so the Machines are read after the
// replicas. It returns false if a cache is stale in a way that changes more than that.
func (c *Controller) readCandidates(ctx context.Context, observed *observation) (current bool, err error) {
	name := observed.machinePools[0].Name
	machinePool, err := c.machinePools.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("read MachinePool %s: %w", c.key(name), err)
	}
	if machinePool.UID != observed.machinePools[0].UID || machinePool.Spec.Replicas == nil || controllers.PausedBy(nil, machinePool) != "" {
		return false, nil
	}
	// The shard groups have what earlier scale-downs selected.
	for _, shard := range observed.shards {
		if current, err := c.isCurrent(ctx, observed.pool, shard); err != nil || !current {
			return false, err
		}
	}
	machines, err := c.machines.List(ctx, metav1.ListOptions{LabelSelector: labels.Set{
		clusterv1.ClusterNameLabel:     machinePool.Spec.ClusterName,
		clusterv1.MachinePoolNameLabel: capi.LabelValue(machinePool.Name),
	}.String()})
	if err != nil {
		return false, fmt.Errorf("list the Machines of MachinePool %s: %w", klog.KObj(machinePool), err)
	}
	candidates, current, err := c.candidates(ctx, observed.pool, machines.Items)
	if err != nil || !current {
		return false, err
	}
	observed.machinePools = []*clusterv1.MachinePool{machinePool}
	observed.candidates = candidates
	return true, nil
}

// readOwner reads into observed whether the MachinePool that owns the pool exists. It returns false
// if the cache lacks the MachinePool.
func (c *Controller) readOwner(ctx context.Context, observed *observation) (current bool, err error) {
	owner := machinePoolOwner(observed.pool)
	machinePool, err := c.machinePools.Get(ctx, owner.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("read MachinePool %s, which owns pool %s: %w", owner.Name, klog.KObj(observed.pool), err)
	}
	exists := err == nil && machinePool.UID == owner.UID
	cached := slices.ContainsFunc(observed.machinePools, func(m *clusterv1.MachinePool) bool { return m.UID == owner.UID })
	if exists && !cached && capi.PoolOf(machinePool) == observed.pool.Name {
		return false, nil
	}
	observed.orphaned = !exists
	return true, nil
}

// isCurrent reports whether the cached shard group has the spec that the API server has.
// It is read by name because its labels may have been removed; the sync that
// follows adds them.
func (c *Controller) isCurrent(ctx context.Context, pool *v1beta1.NstanceMachinePool, shard shardState) (bool, error) {
	name := v1beta1.ShardGroupName(string(pool.Spec.Group), shard.id)
	group, err := c.shardGroups.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return shard.group == nil, nil
	case err != nil:
		return false, fmt.Errorf("read shard group %s of pool %s: %w", name, klog.KObj(pool), err)
	}
	return shard.group != nil && group.UID == shard.group.UID && group.Generation == shard.group.Generation, nil
}

// candidates returns the deletion candidates among the Machines of a pool. It returns
// false if the cache lacks the NstanceMachine of a candidate.
func (c *Controller) candidates(ctx context.Context, pool *v1beta1.NstanceMachinePool, machines []clusterv1.Machine) (candidates []distribute.Candidate, current bool, err error) {
	for _, machine := range machines {
		id, ok := poolplan.MayBeCandidate(&machine)
		if !ok {
			continue
		}
		nstanceMachine, err := c.nstanceMachineLister.Get(id)
		if apierrors.IsNotFound(err) {
			_, err = c.nstanceMachines.Get(ctx, id, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				// The instance was deleted.
				continue
			}
			if err == nil {
				return nil, false, nil
			}
		}
		if err != nil {
			return nil, false, fmt.Errorf("read the NstanceMachine of Machine %s: %w", klog.KObj(&machine), err)
		}
		if owner := controllers.PoolOf(nstanceMachine); owner == nil || owner.UID != pool.UID {
			// The labels of a Machine of another pool can be wrong.
			continue
		}
		if candidate, ok := poolplan.NewCandidate(&machine, nstanceMachine); ok {
			candidates = append(candidates, candidate)
		}
	}
	return candidates, true, nil
}

// Wants reports whether a pool has the group and the shard of a shard group that it does not
// own, and is not being deleted: the pool of the name in its owner reference, or the pool that
// has the name of the group.
func (c *Controller) Wants(ctx context.Context, group *v1beta1.NstanceShardGroup) (bool, error) {
	for _, name := range []string{poolOf(group), string(group.Spec.Group)} {
		if name == "" {
			continue
		}
		pool, err := c.pools.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("read pool %s of shard group %s: %w", name, klog.KObj(group), err)
		}
		if !metav1.IsControlledBy(group, pool) && pool.DeletionTimestamp.IsZero() && pool.Spec.Group == group.Spec.Group && slices.Contains(pool.Spec.Shards, group.Spec.Shard) {
			return true, nil
		}
	}
	return false, nil
}

// readWriters reads a pool with its managedFields, which the cache does not have. The pool
// is empty if it does not exist.
func (c *Controller) readWriters(ctx context.Context, name string) (*v1beta1.NstanceMachinePool, error) {
	pool, err := c.pools.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &v1beta1.NstanceMachinePool{}, nil
	}
	return pool, err
}

// readReplicasWriters reads the MachinePool of a pool with its managedFields. It is empty if
// the pool has no MachinePool, or several.
func (c *Controller) readReplicasWriters(ctx context.Context, pool string) (*clusterv1.MachinePool, error) {
	machinePools := controller.Indexed[clusterv1.MachinePool](c.machinePoolIndex, capi.ByPool, pool)
	if len(machinePools) != 1 {
		return &clusterv1.MachinePool{}, nil
	}
	return c.machinePools.Get(ctx, machinePools[0].Name, metav1.GetOptions{})
}

// hasUncachedMachinePool reports whether the pool has a MachinePool that is not in the
// cache because a request without a response created it, or a former leader.
func (c *Controller) hasUncachedMachinePool(ctx context.Context, observed observation) (bool, error) {
	if len(observed.machinePools) > 0 {
		return false, nil
	}
	machinePool, err := c.machinePools.Get(ctx, observed.pool.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read MachinePool %s: %w", klog.KObj(observed.pool), err)
	}
	return capi.PoolOf(machinePool) == observed.pool.Name, nil
}

const (
	// replicasSetting is a field of the MachinePool. The pool has all other settings.
	replicasSetting = "replicas"
	// writerTimeout is how long the line of the audit trail may wait for the writer.
	writerTimeout = 2 * time.Second
)

// Writer returns who wrote settings of the pool of a shard group last, for the audit trail:
// the object, the field, the field manager and the time. It returns "" if that is not known.
func (c *Controller) Writer(ctx context.Context, group *v1beta1.NstanceShardGroup, settings ...string) string {
	ctx, cancel := context.WithTimeout(ctx, writerTimeout)
	defer cancel()
	name := poolOf(group)
	if len(settings) == 1 && settings[0] == replicasSetting {
		return c.replicasWriter(ctx, name)
	}
	pool, err := c.readWriters(ctx, name)
	switch {
	case err != nil:
		return ""
	case pool.UID == "" || !pool.DeletionTimestamp.IsZero():
		return fmt.Sprintf("%s %s is deleted", v1beta1.PoolKind, name)
	default:
		return lastWriter(v1beta1.PoolKind+" "+name, pool.ManagedFields, settings...)
	}
}

// replicasWriter returns who wrote the replicas of the MachinePool of a pool last.
func (c *Controller) replicasWriter(ctx context.Context, pool string) string {
	machinePool, err := c.readReplicasWriters(ctx, pool)
	if err != nil {
		return ""
	}
	return lastWriter("MachinePool "+machinePool.Name, machinePool.ManagedFields, replicasSetting)
}

// lastWriter describes the last entry of managedFields that owns a setting of the spec. The
// time of an entry is the last write of any of its fields
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management).
func lastWriter(object string, entries []metav1.ManagedFieldsEntry, settings ...string) string {
	var last *metav1.ManagedFieldsEntry
	var setting string
	for i := range entries {
		entry := &entries[i]
		owned := ownedSetting(entry, settings)
		if owned == "" || last != nil && !last.Time.Before(entry.Time) {
			continue
		}
		last, setting = entry, owned
	}
	if last == nil {
		return ""
	}
	writer := fmt.Sprintf("%s, spec.%s: %s", object, setting, last.Manager)
	if last.Subresource != "" {
		writer += " through " + last.Subresource
	}
	if last.Time != nil {
		writer += " at " + last.Time.UTC().Format(time.RFC3339)
	}
	return writer
}

// ownedSetting returns the first of settings that an entry owns, "" if it owns no setting.
func ownedSetting(entry *metav1.ManagedFieldsEntry, settings []string) string {
	if entry.FieldsV1 == nil {
		return ""
	}
	var owned struct {
		Spec map[string]json.RawMessage `json:"f:spec"`
	}
	if err := json.NewDecoder(entry.FieldsV1.GetRawReader()).Decode(&owned); err != nil {
		return ""
	}
	for _, setting := range settings {
		if _, found := owned.Spec["f:"+setting]; found {
			return setting
		}
	}
	return ""
}
