// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/distribute"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// planDeletion completes the deletion of a pool after its last shard group and
// NstanceMachine were deleted. It deletes the MachinePool and does not wait for it:
// Cluster API keeps a MachinePool until its pool was deleted (docs/capi.md#deletion).
func planDeletion(observed observation, machines machinesMode) decision {
	contested := contested(observed)
	switch {
	case retains(observed.pool):
	case contested:
		return decision{machines: machines, retain: &problem{v1beta1.ReasonMachinePoolConflict,
			"the pool is deleted with one of several MachinePools that refer to it, its instances are kept for the other one"}}
	case observed.orphaned:
		return decision{machines: machines, retain: &problem{v1beta1.ReasonNoMachinePool,
			"the pool is deleted because its MachinePool vanished, its instances are kept; to terminate them, delete the pool that imports them"}}
	}
	d := decision{
		machines:  machines,
		addOwners: slices.ContainsFunc(observed.machinePools, func(machinePool *clusterv1.MachinePool) bool { return !ownedBy(observed.pool, machinePool) }),
		blocked:   &problem{v1beta1.ReasonDeleting, "the pool is being deleted and waits for its shard groups"},
	}
	if len(observed.nstanceMachines) > 0 {
		d.blocked.message = "the pool is being deleted and waits for the Machines of its instances"
	}
	d.removeFinalizer = len(observed.shardGroups) == 0 && len(observed.nstanceMachines) == 0 && !d.addOwners
	for _, machinePool := range observed.machinePools {
		if machinePool.DeletionTimestamp.IsZero() && !contested {
			d.deleteMachinePools = append(d.deleteMachinePools, machinePool)
		}
	}
	for _, group := range observed.shardGroups {
		switch {
		case retains(observed.pool):
			planPolicy(group, v1beta1.DeletionRetain, &d)
		case group.DeletionTimestamp.IsZero():
			planShardGroupDeletion(observed, group, &d)
		}
	}
	return d
}

// contested reports whether Cluster API deletes the pool with one of its MachinePools, while
// another one refers to it and is not being deleted. Cluster API deletes the infrastructure of
// a deleted MachinePool whoever owns it, so the deletion of a surplus MachinePool would
// terminate all instances of the other one. With the Cluster all are deleted, one after the other.
func contested(observed observation) bool {
	deleting, others := false, false
	for _, machinePool := range observed.machinePools {
		if machinePool.DeletionTimestamp.IsZero() {
			others = true
		} else {
			deleting = true
		}
	}
	return deleting && others && !observed.clusterDeleting
}

// mayBeOrphaned reports whether the garbage collector may have deleted the pool: the MachinePool
// that owns it does not exist, although Cluster API keeps a MachinePool until its pool was deleted.
// It vanished because a hand removed its finalizer, or in a clusterctl move that did not know the
// pool. Nobody has said that the instances are to be terminated, also if another MachinePool was
// created meanwhile. The cache may still have it. A deletion that has begun continues.
func mayBeOrphaned(observed observation) bool {
	return !observed.pool.DeletionTimestamp.IsZero() && observed.paused == "" && !retains(observed.pool) &&
		machinePoolOwner(observed.pool) != nil && !observed.clusterDeleting &&
		!slices.ContainsFunc(observed.shardGroups, func(group *v1beta1.NstanceShardGroup) bool { return !group.DeletionTimestamp.IsZero() }) &&
		!slices.ContainsFunc(observed.nstanceMachines, func(m *v1beta1.NstanceMachine) bool { return !m.DeletionTimestamp.IsZero() })
}

// machinePoolOwner returns the reference of a pool to the MachinePool that is its controller, nil
// if it has none.
func machinePoolOwner(pool *v1beta1.NstanceMachinePool) *metav1.OwnerReference {
	owner := metav1.GetControllerOfNoCopy(pool)
	if owner == nil || owner.Kind != "MachinePool" || !strings.HasPrefix(owner.APIVersion, clusterv1.GroupVersion.Group+"/") {
		return nil
	}
	return owner
}

// retain makes a pool that is being deleted leave its groups and instances. The policy is
// stored before anything is deleted, so that the next process continues with it.
func (c *Controller) retain(ctx context.Context, pool *v1beta1.NstanceMachinePool, why *problem) error {
	patch := fmt.Sprintf(`{"metadata":{"uid":%q},"spec":{"deletionPolicy":%q}}`, pool.UID, v1beta1.DeletionRetain)
	written, err := c.pools.Patch(ctx, pool.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: controllers.FieldManager})
	if err != nil {
		return fmt.Errorf("write the deletion policy of pool %s: %w", klog.KObj(pool), err)
	}
	c.poolWrites.Record(written)
	controller.Warn(c.recorder, pool, why.reason, "Delete", why.message)
	return nil
}

// planShardGroupDeletion deletes a shard group of a pool that is being deleted once no
// instance on the shard has an NstanceMachine. Until then Cluster API drains the
// Machines, and each drained instance makes the shard smaller, so that the server does
// not replace it.
func planShardGroupDeletion(observed observation, group *v1beta1.NstanceShardGroup, d *decision) {
	nstanceMachines := onShardOf(observed.nstanceMachines, group)
	if len(nstanceMachines) == 0 {
		planPolicy(group, "", d)
		return
	}
	var drained []string
	for _, nstanceMachine := range nstanceMachines {
		if !nstanceMachine.DeletionTimestamp.IsZero() &&
			!meta.IsStatusConditionTrue(nstanceMachine.Status.Conditions, v1beta1.ConditionServerDeleted) {
			drained = append(drained, nstanceMachine.Name)
		}
	}
	shard := shardOf(observed, group)
	size, removeFirst := shard.RemoveDrained(drained)
	if size == group.Spec.Size {
		return
	}
	want := unchanged(group)
	want.spec.Size, want.spec.RemoveFirst = size, removeFirst
	d.apply = append(d.apply, want)
}

// shardOf returns the shard of a shard group, also if the pool no longer names it.
func shardOf(observed observation, group *v1beta1.NstanceShardGroup) distribute.Shard {
	for i, state := range observed.shards {
		if state.group != nil && state.group.UID == group.UID {
			return observed.distributable[i]
		}
	}
	return distribute.Shard{
		ID: string(group.Spec.Shard), Size: group.Spec.Size, Fixed: true, HasShardGroup: true, RemoveFirst: group.Spec.RemoveFirst,
	}
}

// unchanged returns a shard group as it exists, for a change of some fields.
func unchanged(group *v1beta1.NstanceShardGroup) wantedShardGroup {
	return wantedShardGroup{
		uid: string(group.UID), resourceVersion: group.ResourceVersion,
		spec: *group.Spec.DeepCopy(),
	}
}

// retains reports whether a pool is being deleted and its groups stay on the shards. Its
// provider ids stay too: Cluster API deletes the Node of an id that is removed
// (docs/capi.md#provider-ids).
func retains(pool *v1beta1.NstanceMachinePool) bool {
	return !pool.DeletionTimestamp.IsZero() && deletionPolicy(pool) == v1beta1.DeletionRetain
}

// planPolicy deletes a shard group after it got a policy. The policy of the pool may have
// been changed just before the deletion, and a shard group is deleted with its own policy.
func planPolicy(group *v1beta1.NstanceShardGroup, policy v1beta1.DeletionPolicy, d *decision) {
	switch {
	case group.Spec.DeletionPolicy == policy && group.DeletionTimestamp.IsZero():
		d.deleteShardGroups = append(d.deleteShardGroups, group)
	case group.Spec.DeletionPolicy != policy:
		want := unchanged(group)
		want.spec.DeletionPolicy = policy
		d.apply = append(d.apply, want)
	}
}

// onShardOf returns the nstanceMachines whose instances are on the shard of group.
func onShardOf(nstanceMachines []*v1beta1.NstanceMachine, group *v1beta1.NstanceShardGroup) []*v1beta1.NstanceMachine {
	var found []*v1beta1.NstanceMachine
	for _, nstanceMachine := range nstanceMachines {
		if nstanceMachine.Spec.Shard == group.Spec.Shard {
			found = append(found, nstanceMachine)
		}
	}
	return found
}

// ensureFinalizer adds the finalizer to a pool before anything exists on a shard, and
// the owners to a pool that is being deleted.
func (c *Controller) ensureFinalizer(ctx context.Context, observed observation) (*v1beta1.NstanceMachinePool, error) {
	written, err := c.pools.Apply(ctx, applyPool(observed, observed.pool.Spec.ProviderIDList), controllers.Apply)
	if err != nil {
		return nil, fmt.Errorf("write finalizer and owners of pool %s: %w", klog.KObj(observed.pool), err)
	}
	c.poolWrites.Record(written)
	return written, nil
}

// ownedBy reports whether a MachinePool is among the owners of a pool. Cluster API
// adds it, unless the MachinePool was already being deleted. Then it would not
// notice that the pool was deleted, and keep the MachinePool forever.
func ownedBy(pool *v1beta1.NstanceMachinePool, machinePool *clusterv1.MachinePool) bool {
	return slices.ContainsFunc(pool.OwnerReferences, func(owner metav1.OwnerReference) bool { return owner.UID == machinePool.UID })
}

// removeFinalizer completes the deletion of a pool.
func (c *Controller) removeFinalizer(ctx context.Context, pool *v1beta1.NstanceMachinePool) error {
	patch, err := controller.RemoveFinalizer(pool, v1beta1.FinalizerMachinePool)
	if err != nil || patch == nil {
		return err
	}
	_, err = c.pools.Patch(ctx, pool.Name, types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: controllers.FieldManager})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove the finalizer of pool %s: %w", klog.KObj(pool), err)
	}
	klog.FromContext(ctx).Info("Removed the finalizer of the pool")
	return nil
}

func (c *Controller) deleteShardGroups(ctx context.Context, groups []*v1beta1.NstanceShardGroup) error {
	var failed []error
	for _, group := range groups {
		err := c.shardGroups.Delete(ctx, group.Name, controller.DeleteByUID(group))
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("delete shard group %s: %w", klog.KObj(group), err))
			continue
		}
		controllers.LogDeletion(ctx, "NstanceShardGroup", klog.KObj(group), "its pool is deleted, or no longer has its shard", err)
	}
	return errors.Join(failed...)
}

func (c *Controller) deleteMachinePools(ctx context.Context, machinePools []*clusterv1.MachinePool) error {
	var failed []error
	for _, machinePool := range machinePools {
		err := c.machinePools.Delete(ctx, machinePool.Name, controller.DeleteByUID(machinePool))
		if err != nil && !apierrors.IsNotFound(err) {
			failed = append(failed, fmt.Errorf("delete MachinePool %s: %w", klog.KObj(machinePool), err))
			continue
		}
		c.created.Delete(cache.MetaObjectToName(machinePool))
		controllers.LogDeletion(ctx, "MachinePool", klog.KObj(machinePool), "its pool is deleted", err)
	}
	return errors.Join(failed...)
}

// deleteOrphan deletes the MachinePool that was created for a pool that no longer
// exists. A finalizer does not prevent that: a request to delete the pool may have begun
// before the finalizer was written.
func (c *Controller) deleteOrphan(ctx context.Context, pool cache.ObjectName) error {
	uid, ok := c.created.Load(pool)
	if !ok {
		return nil
	}
	_, err := c.pools.Get(ctx, pool.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read pool %s: %w", pool, err)
	}
	// A new pool of this name uses the MachinePool.
	if apierrors.IsNotFound(err) {
		err := c.machinePools.Delete(ctx, pool.Name, *metav1.NewPreconditionDeleteOptions(string(uid.(types.UID))))
		// A conflict means that another MachinePool has the name.
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete MachinePool %s, whose pool does not exist: %w", pool, err)
		}
		controllers.LogDeletion(ctx, "MachinePool", klog.KRef(pool.Namespace, pool.Name), "its pool was deleted meanwhile", err)
	}
	c.created.Delete(pool)
	return nil
}
