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
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

func (c *Controller) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	pool, err := controller.GetCached(c.poolLister.Get, "pool", key)
	if err != nil {
		return 0, err
	}
	if pool == nil {
		c.staleReads.Reset(key)
		c.scaleDowns.drop(key)
		c.shortfalls.remove(key)
		return 0, c.deleteOrphan(ctx, key)
	}
	hasFinalizer := slices.Contains(pool.Finalizers, v1beta1.FinalizerMachinePool)
	if !pool.DeletionTimestamp.IsZero() && !hasFinalizer {
		// The remaining finalizers are those of other clients.
		return 0, nil
	}
	if caughtUp, delay := c.caughtUp(pool); !caughtUp {
		return delay, nil
	}
	observed, err := c.observe(pool)
	if err != nil {
		return 0, err
	}
	if needsCandidates(observed) {
		if current, err := c.readCandidates(ctx, &observed); err != nil || !current {
			return c.staleReads.Delay(key), err
		}
	}
	c.observeGuarded(&observed)
	d := plan(observed)
	if (!hasFinalizer && !d.statusOnly) || d.addOwners {
		if observed.pool, err = c.ensureFinalizer(ctx, observed); err != nil {
			return 0, err
		}
	}
	if d.addOwners {
		// The change of the owners enqueues the pool again.
		return 0, nil
	}
	if d.removeFinalizer {
		if uncached, err := c.hasUncachedMachinePool(ctx, observed); uncached || err != nil {
			return c.staleReads.Delay(key), err
		}
	}
	c.staleReads.Reset(key)
	err = c.act(ctx, observed, d)
	if d.moved && err == nil {
		c.shortfalls.moved(key, c.clock.Now())
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err != nil {
		// The mode changes only with shard groups that were written.
		d.machines.on = hasMachines(observed)
	}
	if !d.statusOnly && len(observed.machinePools) == 1 && autoscaled(observed.machinePools[0]) && observed.pool.DeletionTimestamp.IsZero() {
		err = errors.Join(err, c.annotate(ctx, observed.machinePools[0], shapeOf(observed)))
	}
	if err == nil && (d.removeFinalizer || d.expectsChange()) {
		return observed.shortfallWait, nil
	}
	return shortest(d.scalingDown.delay(), observed.shortfallWait), errors.Join(err, c.report(ctx, observed, d))
}

// act carries out a decision. A part that fails does not keep the others from being
// done.
func (c *Controller) act(ctx context.Context, observed observation, d decision) error {
	failed := []error{
		c.applyShardGroups(ctx, observed.pool, d.apply),
		c.deleteShardGroups(ctx, d.deleteShardGroups),
		c.deleteMachinePools(ctx, d.deleteMachinePools),
	}
	if d.create != nil {
		failed = append(failed, c.createMachinePool(ctx, observed.pool, *d.create))
	}
	if d.raise != nil {
		failed = append(failed, c.raiseReplicas(ctx, observed.machinePools[0], *d.raise))
	}
	err := errors.Join(failed...)
	if d.removeFinalizer && err == nil {
		err = c.removeFinalizer(ctx, observed.pool)
	}
	return err
}

// expectsChange reports whether the decision soon causes an event that enqueues the
// pool: a new MachinePool, or the first report of a shard group. A status before that
// would be an unnecessary write.
func (d decision) expectsChange() bool {
	return d.create != nil || d.raise != nil ||
		slices.ContainsFunc(d.apply, func(want wantedShardGroup) bool { return want.uid == "" })
}

// caughtUp reports whether the caches have everything that earlier syncs of the pool
// wrote, and when to sync again if not.
func (c *Controller) caughtUp(pool *v1beta1.NstanceMachinePool) (caughtUp bool, delay time.Duration) {
	own := cache.MetaObjectToName(pool)
	groups := make([]cache.ObjectName, len(pool.Spec.Shards))
	for i, shard := range pool.Spec.Shards {
		groups[i] = c.key(v1beta1.ShardGroupName(string(pool.Spec.Group), string(shard)))
	}
	if c.poolWrites.CaughtUp(own) && c.machinePoolWrites.CaughtUp(own) && c.shardGroupWrites.CaughtUp(groups...) {
		return true, 0
	}
	return false, max(c.poolWrites.Delay(own), c.machinePoolWrites.Delay(own), c.shardGroupWrites.Delay(groups...))
}

// createMachinePool creates the MachinePool of a pool that has none. Afterwards only
// users and the autoscaler change its replicas.
func (c *Controller) createMachinePool(ctx context.Context, pool *v1beta1.NstanceMachinePool, replicas int32) error {
	created, err := c.machinePools.Create(ctx, newMachinePool(pool, c.clusterName, replicas),
		metav1.CreateOptions{FieldManager: controllers.FieldManager})
	if apierrors.IsAlreadyExists(err) {
		// Another client created it. The pool is enqueued when the cache has it.
		return nil
	}
	if err != nil {
		return fmt.Errorf("create MachinePool %s: %w", klog.KObj(pool), err)
	}
	c.machinePoolWrites.Record(created)
	c.created.Store(cache.MetaObjectToName(pool), created.UID)
	klog.FromContext(ctx).Info("Created the MachinePool", "replicas", replicas)
	return nil
}

// newMachinePool returns a MachinePool without a bootstrap provider: the shard server
// provides the userdata of instances, so the name of the bootstrap Secret is set and
// empty (docs/capi.md#machine-pools).
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

// raiseReplicas replaces the default of Cluster API's webhook.
func (c *Controller) raiseReplicas(ctx context.Context, machinePool *clusterv1.MachinePool, replicas int32) error {
	err := c.capi.ScaleMachinePool(ctx, machinePool, replicas, metav1.PatchOptions{FieldManager: controllers.FieldManager})
	if err != nil {
		return fmt.Errorf("set the replicas of MachinePool %s to %d: %w", klog.KObj(machinePool), replicas, err)
	}
	klog.FromContext(ctx).Info("Raised the replicas of the MachinePool to the instances of the shards", "replicas", replicas)
	return nil
}

func (c *Controller) applyShardGroups(ctx context.Context, pool *v1beta1.NstanceMachinePool, wanted []wantedShardGroup) error {
	var failed []error
	for _, want := range wanted {
		if want.afterOthers && len(failed) > 0 {
			continue
		}
		written, err := c.shardGroups.Apply(ctx, applyShardGroup(pool, want), controllers.Apply)
		if err != nil {
			failed = append(failed, fmt.Errorf("apply shard group %s of pool %s: %w",
				v1beta1.ShardGroupName(string(want.spec.Group), string(want.spec.Shard)), klog.KObj(pool), err))
			continue
		}
		c.shardGroupWrites.Record(written)
	}
	return errors.Join(failed...)
}

// report writes what the shard groups report: first the provider ids into the spec,
// where Cluster API reads them, then the status, which has the new generation of the
// spec.
func (c *Controller) report(ctx context.Context, observed observation, d decision) error {
	pool := observed.pool
	ids, ambiguous := c.providerIDs(pool.Spec.ProviderIDList, observed.shardGroups, allReported(observed) && !retains(pool))
	if !d.statusOnly && !equality.Semantic.DeepEqual(ids, pool.Spec.ProviderIDList) {
		written, err := c.pools.Apply(ctx, applyPool(observed, ids), controllers.Apply)
		if err != nil {
			return fmt.Errorf("write the provider ids of pool %s: %w", klog.KObj(pool), err)
		}
		c.poolWrites.Record(written)
		pool = written
	}

	status := newStatus(pool, observed, d, ambiguous)
	if equality.Semantic.DeepEqual(status, observed.pool.Status) {
		return nil
	}
	written, err := c.pools.ApplyStatus(ctx, applyStatus(pool, status), controllers.Apply)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the status of pool %s: %w", klog.KObj(pool), err)
	}
	c.poolWrites.Record(written)
	c.recordProblem(observed.pool, status)
	c.recordBlocked(observed.pool, status.Conditions)
	c.recordShortfall(observed.pool, status)
	c.recordChanges(ctx, &observed.pool.Status, written)
	return nil
}
