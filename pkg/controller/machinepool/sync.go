// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
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
	held := slices.Contains(pool.Finalizers, v1beta1.FinalizerMachinePool)
	if !pool.DeletionTimestamp.IsZero() && !held {
		// What keeps it is somebody else's.
		return 0, nil
	}
	if !c.upToDate(pool) {
		return staleRetry, nil
	}
	seen, err := c.observe(pool)
	if err != nil {
		return 0, err
	}
	if shrinks(seen) {
		if current, err := c.look(ctx, &seen); err != nil || !current {
			return staleRetry, err
		}
	}
	decided := plan(seen)
	if (!held && !decided.frozen) || decided.adopt {
		if seen.pool, err = c.hold(ctx, seen); err != nil {
			return 0, err
		}
	}
	if decided.adopt {
		// The pool comes back with its owners.
		return 0, nil
	}
	if decided.release {
		if hidden, err := c.hidden(ctx, seen); hidden || err != nil {
			return staleRetry, err
		}
	}
	err = c.carryOut(ctx, seen, decided)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err != nil {
		// What depends on it is not so yet.
		decided.machines.on = hasMachines(seen.pool)
	}
	if !decided.frozen && len(seen.machinePools) == 1 && autoscaled(seen.machinePools[0]) && seen.pool.DeletionTimestamp.IsZero() {
		err = errors.Join(err, c.annotate(ctx, seen.machinePools[0], shapeOf(seen)))
	}
	if err == nil && (decided.release || decided.awaitsNews()) {
		return 0, nil
	}
	return 0, errors.Join(err, c.report(ctx, seen, decided))
}

// carryOut does what was decided, each part whether or not the others can be
// done.
func (c *Controller) carryOut(ctx context.Context, seen observation, decided decision) error {
	failed := []error{
		c.applyShardGroups(ctx, seen.pool, decided.apply),
		c.removeShardGroups(ctx, decided.remove),
		c.removeMachinePools(ctx, decided.removeMachinePools),
	}
	if decided.create != nil {
		failed = append(failed, c.createMachinePool(ctx, seen.pool, *decided.create))
	}
	if decided.raise != nil {
		failed = append(failed, c.raise(ctx, seen.machinePools[0], *decided.raise))
	}
	err := errors.Join(failed...)
	if decided.release && err == nil {
		err = c.releasePool(ctx, seen.pool)
	}
	return err
}

// awaitsNews tells whether what was done is certain to bring news of the pool in
// a moment: a MachinePool, or the first report of a shard group. A status before
// that would be a write for nothing.
func (d decision) awaitsNews() bool {
	return d.create != nil || d.raise != nil ||
		slices.ContainsFunc(d.apply, func(want shardGroupSpec) bool { return want.uid == "" })
}

// upToDate tells whether the caches show everything that earlier syncs of this
// pool have written.
func (c *Controller) upToDate(pool *v1beta1.NstanceMachinePool) bool {
	own := cache.MetaObjectToName(pool)
	groups := make([]cache.ObjectName, len(pool.Spec.Shards))
	for i, shard := range pool.Spec.Shards {
		groups[i] = c.key(v1beta1.ShardGroupName(string(pool.Spec.Group), string(shard)))
	}
	return c.poolWrites.Seen(own) && c.machinePoolWrites.Seen(own) && c.shardGroupWrites.Seen(groups...)
}

// observe reads the caches.
func (c *Controller) observe(pool *v1beta1.NstanceMachinePool) (observation, error) {
	seen := observation{
		pool:         pool,
		machinePools: controller.Indexed[clusterv1.MachinePool](c.machinePoolIndex, capi.ByPool, pool.Name),
		owned:        c.shardGroupsOf(pool),
		members:      c.membersOf(pool),
	}
	cluster, err := c.cluster()
	if err != nil {
		return observation{}, err
	}
	seen.clusterGoes = cluster != nil && !cluster.DeletionTimestamp.IsZero()
	seen.paused = pausedBy(cluster, pool, seen.machinePools)
	_, namesake, err := c.machinePoolIndex.GetByKey(c.key(pool.Name).String())
	if err != nil {
		return observation{}, fmt.Errorf("read MachinePool %s from the cache: %w", c.key(pool.Name), err)
	}
	seen.namesake = namesake
	for _, id := range pool.Spec.Shards {
		state := shardState{
			id:         string(id),
			configured: c.shards.Has(string(id)),
			synced:     c.groups.HasSynced(string(id)),
		}
		if group, ok := c.groups.Get(string(id), string(pool.Spec.Group)); ok && !group.Deleting {
			state.size, state.reported = group.Size, &group
		}
		name := v1beta1.ShardGroupName(string(pool.Spec.Group), string(id))
		state.group, err = c.shardGroupLister.Get(name)
		if apierrors.IsNotFound(err) {
			state.group = nil
		} else if err != nil {
			return observation{}, fmt.Errorf("read shard group %s from the cache: %w", c.key(name), err)
		}
		seen.shards = append(seen.shards, state)
	}
	return seen, nil
}

// createMachinePool makes the MachinePool of a pool that has none. Afterwards
// its replicas belong to users and the autoscaler alone.
func (c *Controller) createMachinePool(ctx context.Context, pool *v1beta1.NstanceMachinePool, replicas int32) error {
	created, err := c.machinePools.Create(ctx, newMachinePool(pool, c.clusterName, replicas),
		metav1.CreateOptions{FieldManager: controller.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		// Somebody was faster; the cache will show it and wake this pool.
		return nil
	}
	if err != nil {
		return fmt.Errorf("create MachinePool %s: %w", klog.KObj(pool), err)
	}
	c.machinePoolWrites.Wrote(created)
	klog.FromContext(ctx).Info("MachinePool created", "replicas", replicas)
	return nil
}

// newMachinePool is a MachinePool without a bootstrap provider: instances get
// what they need from their shard server, so the name of the bootstrap Secret is
// set and empty (CAPI contract).
func newMachinePool(pool *v1beta1.NstanceMachinePool, clusterName string, replicas int32) *clusterv1.MachinePool {
	return &clusterv1.MachinePool{
		ObjectMeta: metav1.ObjectMeta{Name: pool.Name, Namespace: pool.Namespace},
		Spec: clusterv1.MachinePoolSpec{
			ClusterName: clusterName,
			Replicas:    &replicas,
			Template: clusterv1.MachineTemplateSpec{Spec: clusterv1.MachineSpec{
				ClusterName: clusterName,
				Bootstrap:   clusterv1.Bootstrap{DataSecretName: ptr.To("")},
				InfrastructureRef: clusterv1.ContractVersionedObjectReference{
					APIGroup: v1beta1.GroupName, Kind: v1beta1.PoolKind, Name: pool.Name,
				},
			}},
		},
	}
}

func (c *Controller) applyShardGroups(ctx context.Context, pool *v1beta1.NstanceMachinePool, wanted []shardGroupSpec) error {
	var failed []error
	for _, want := range wanted {
		written, err := c.shardGroups.Apply(ctx, applyShardGroup(pool, want), controller.Apply)
		if err != nil {
			failed = append(failed, fmt.Errorf("apply shard group %s of pool %s: %w",
				v1beta1.ShardGroupName(string(want.spec.Group), string(want.spec.Shard)), klog.KObj(pool), err))
			continue
		}
		c.shardGroupWrites.Wrote(written)
	}
	return errors.Join(failed...)
}

// report writes what the shard groups say: first the provider ids into the spec,
// where Cluster API reads them, then the status, which names the generation that
// the spec then has.
func (c *Controller) report(ctx context.Context, seen observation, decided decision) error {
	pool := seen.pool
	ids, ambiguous := c.providerIDs(pool.Spec.ProviderIDList, seen.owned)
	if !decided.frozen && !equality.Semantic.DeepEqual(ids, pool.Spec.ProviderIDList) {
		written, err := c.pools.Apply(ctx, applyPool(seen, ids), controller.Apply)
		if err != nil {
			return fmt.Errorf("write the provider ids of pool %s: %w", klog.KObj(pool), err)
		}
		c.poolWrites.Wrote(written)
		pool = written
	}

	status := newStatus(pool, seen, decided, ambiguous)
	if equality.Semantic.DeepEqual(status, seen.pool.Status) {
		return nil
	}
	written, err := c.pools.ApplyStatus(ctx, applyStatus(pool, status), controller.Apply)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the status of pool %s: %w", klog.KObj(pool), err)
	}
	c.poolWrites.Wrote(written)
	c.recordTrouble(seen.pool, status)
	return nil
}
