// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/controller"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/poolevents"
)

func (c *Controller) sync(ctx context.Context, key cache.ObjectName) (time.Duration, error) {
	caughtUp := c.poolWrites.CaughtUp(key) && c.machinePoolWrites.CaughtUp(key)
	pool, err := controller.GetCached(c.poolLister.Get, "pool", key)
	if err != nil {
		return 0, err
	}
	if pool == nil {
		c.staleReads.Reset(key)
		c.scaleDowns.drop(key)
		c.nodeless.Forget(key)
		c.reportRotation(key.Name, nil, nil)
		c.shortfalls.Remove(key)
		return 0, c.deleteOrphan(ctx, key)
	}
	hasFinalizer := slices.Contains(pool.Finalizers, v1beta1.FinalizerMachinePool)
	if !pool.DeletionTimestamp.IsZero() && !hasFinalizer {
		// The remaining finalizers belong to other clients.
		return 0, nil
	}
	if !caughtUp {
		return max(c.poolWrites.Delay(key), c.machinePoolWrites.Delay(key)), nil
	}
	if groups := c.shardGroupKeys(pool); !c.shardGroupWrites.CaughtUp(groups...) {
		return c.shardGroupWrites.Delay(groups...), nil
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
	if mayBeOrphaned(observed) {
		if current, err := c.readOwner(ctx, &observed); err != nil || !current {
			return c.staleReads.Delay(key), err
		}
	}
	c.observeGuarded(&observed)
	c.observeRotation(&observed)
	c.observeRemediation(&observed)
	d := plan(observed)
	begin := newReplacements(observed, d)
	if shrinks(observed, d) || startsReplacements(observed, d) || slices.ContainsFunc(begin, func(b newReplacement) bool { return b.problem != "" }) {
		if current, err := c.isUpToDate(ctx, observed); err != nil || !current {
			return c.staleReads.Delay(key), err
		}
	}
	if wanted, err := c.stillWanted(ctx, observed, begin); err != nil || !wanted {
		return c.staleReads.Delay(key), err
	}
	if d.retain != nil {
		// The new spec enqueues the pool again.
		return 0, c.retain(ctx, pool, d.retain)
	}
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
	if err == nil {
		c.recordRemediation(observed.pool, begin)
	}
	if d.moved && err == nil {
		c.shortfalls.Moved(key, c.clock.Now())
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if err != nil {
		// The mode changes only with shard groups that were written.
		d.machines.on = hasMachines(observed)
	}
	if !d.statusOnly && len(observed.machinePools) == 1 && capi.Autoscaled(observed.machinePools[0]) && observed.pool.DeletionTimestamp.IsZero() {
		err = errors.Join(err, c.annotator.Annotate(ctx, observed.machinePools[0], shapeOf(observed), ptr.Deref(observed.pool.Spec.Node, v1beta1.NodeSettings{}).MaxPods))
	}
	if err == nil && (d.removeFinalizer || d.expectsChange()) {
		return observed.shortfallWait, nil
	}
	recheck, failed := c.report(ctx, observed, d)
	return shortest(shortest(shortest(shortest(d.scalingDown.delay(), d.rotation.delay()), observed.remediation.delay()), observed.shortfallWait), recheck), errors.Join(err, failed)
}

// act carries out a decision. If a part fails, the others are still done.
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
	if d.handOver {
		failed = append(failed, c.handOver(ctx, observed))
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
	return d.create != nil || d.raise != nil || d.createsShardGroup()
}

func (d decision) createsShardGroup() bool {
	return slices.ContainsFunc(d.apply, func(want wantedShardGroup) bool { return want.uid == "" })
}

// shardGroupKeys returns the keys of the shard groups of a pool.
func (c *Controller) shardGroupKeys(pool *v1beta1.NstanceMachinePool) []cache.ObjectName {
	groups := make([]cache.ObjectName, len(pool.Spec.Shards))
	for i, shard := range pool.Spec.Shards {
		groups[i] = c.key(v1beta1.ShardGroupName(string(pool.Spec.Group), string(shard)))
	}
	return groups
}

// createMachinePool creates the MachinePool of a pool. Afterwards only users and the
// autoscaler change its replicas.
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

// handOver gives up the ownership of what the operator has written into the specs of the pool, at
// its import, and of its MachinePool. Otherwise the first server-side apply of a user who wants
// other values conflicts with the operator
// (https://kubernetes.io/docs/reference/using-api/server-side-apply/#transferring-ownership-between-managers).
func (c *Controller) handOver(ctx context.Context, observed observation) error {
	var failed []error
	if pool := observed.pool; capi.OperatorOwnsSpec(pool.ManagedFields) {
		written, err := disown(ctx, c.pools, pool)
		failed = append(failed, err)
		if written != nil {
			c.poolWrites.Record(written)
		}
	}
	if machinePool := observed.machinePools[0]; capi.OperatorOwnsSpec(machinePool.ManagedFields) {
		written, err := disown(ctx, c.machinePools, machinePool)
		failed = append(failed, err)
		if written != nil {
			c.machinePoolWrites.Record(written)
		}
	}
	return errors.Join(failed...)
}

// client reads and patches objects of type T.
type client[T metav1.Object] interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
	Patch(ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (T, error)
}

// disown removes the spec from the managed fields of the operator, nil if another write was first:
// its event enqueues the pool again.
func disown[T metav1.Object](ctx context.Context, objects client[T], cached T) (written T, err error) {
	var none T
	current, err := objects.Get(ctx, cached.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return none, nil
	}
	if err != nil {
		return none, fmt.Errorf("read the managed fields of %T %s: %w", cached, klog.KObj(cached), err)
	}
	kept, err := capi.DisownSpec(current.GetManagedFields())
	if err != nil {
		return none, fmt.Errorf("managed fields of %T %s: %w", cached, klog.KObj(cached), err)
	}
	if len(kept) == 0 || current.GetUID() != cached.GetUID() {
		return none, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": current.GetResourceVersion(), "managedFields": kept,
	}})
	if err != nil {
		return none, fmt.Errorf("encode the managed fields of %T %s: %w", cached, klog.KObj(cached), err)
	}
	written, err = objects.Patch(ctx, cached.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: controllers.FieldManager})
	if err != nil {
		return none, fmt.Errorf("hand over the spec of %T %s: %w", cached, klog.KObj(cached), err)
	}
	return written, nil
}

// shortest returns the shorter of two delays. Zero is no delay.
func shortest(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// report writes the reports of the shard groups: first the provider ids into the spec,
// where Cluster API reads them (docs/capi.md#provider-ids), then the status, which has the
// new generation of the spec. It returns the delay after which to sync again, 0 to wait for a
// change.
func (c *Controller) report(ctx context.Context, observed observation, d decision) (time.Duration, error) {
	pool := observed.pool
	complete := allReported(observed) && !retains(pool) && (d.blocked == nil || !pool.DeletionTimestamp.IsZero())
	ids, wrong := c.providerIDs(pool.Spec.ProviderIDList, observed.shardGroups, complete)
	recheck := time.Duration(0)
	if wrong != nil && wrong.reason == v1beta1.ReasonNodeOfOtherShard {
		recheck = controllers.ForeignRecheck
	}
	if wait := observed.nodeless.Wait; wait > 0 && (recheck == 0 || wait < recheck) {
		recheck = wait
	}
	if !d.statusOnly && !equality.Semantic.DeepEqual(ids, pool.Spec.ProviderIDList) {
		written, err := c.pools.Apply(ctx, applyPool(observed, ids), controllers.Apply)
		if err != nil {
			return 0, fmt.Errorf("write the provider ids of pool %s: %w", klog.KObj(pool), err)
		}
		c.poolWrites.Record(written)
		pool = written
	}

	status := newStatus(pool, observed, d, wrong)
	c.reportRotation(pool.Name, meta.FindStatusCondition(status.Conditions, v1beta1.ConditionRollingOut), d.rotation)
	if equality.Semantic.DeepEqual(status, observed.pool.Status) {
		return recheck, nil
	}
	written, err := c.pools.ApplyStatus(ctx, applyStatus(pool, status), controllers.Apply)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("write the status of pool %s: %w", klog.KObj(pool), err)
	}
	c.poolWrites.Record(written)
	poolevents.Record(c.recorder, observed.pool, written, func() string {
		limited, cancel := context.WithTimeout(ctx, writerTimeout)
		defer cancel()
		return c.replicasWriter(limited, written.Name)
	})
	return recheck, nil
}

// applyPool returns the fields of a pool that this controller owns, without the
// status: the finalizer, the provider ids, and during the deletion the owners.
func applyPool(observed observation, ids []string) *applyv1beta1.NstanceMachinePoolApplyConfiguration {
	pool := observed.pool
	applied := applyv1beta1.NstanceMachinePool(pool.Name, pool.Namespace).WithUID(pool.UID).
		WithFinalizers(v1beta1.FinalizerMachinePool).
		WithSpec(applyv1beta1.NstanceMachinePoolSpec().WithProviderIDList(ids...))
	if pool.DeletionTimestamp.IsZero() {
		return applied
	}
	for _, machinePool := range observed.machinePools {
		applied.WithOwnerReferences(metav1ac.OwnerReference().
			WithAPIVersion(clusterv1.GroupVersion.String()).
			WithKind("MachinePool").
			WithName(machinePool.Name).
			WithUID(machinePool.UID))
	}
	return applied
}

// applyStatus returns the fields of the status that this controller owns.
func applyStatus(pool *v1beta1.NstanceMachinePool, status v1beta1.NstanceMachinePoolStatus) *applyv1beta1.NstanceMachinePoolApplyConfiguration {
	return applyv1beta1.NstanceMachinePool(pool.Name, pool.Namespace).WithUID(pool.UID).
		WithStatus(controller.ApplyConfiguration[applyv1beta1.NstanceMachinePoolStatusApplyConfiguration](status))
}
