// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/capi"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/shard"
)

// A shard replaces an instance of a pool that is deleted, unless its size was
// lowered before. So when there are to be fewer, an instance is not ended before
// the pool has chosen it and its shard knows: the replacement would be one too
// many, and another instance would go for it.
const (
	// poolGrace is how long that is waited for. The pool may be unable to choose.
	poolGrace = 30 * time.Second
	// poolRetry is how long a look at the pool waits for the next.
	poolRetry = time.Second
)

// poolScale is what there is and what there is to be of a pool.
type poolScale struct {
	// pool and machinePool are nil when there is none, or more than one.
	pool        *v1beta1.NstanceMachinePool
	machinePool *clusterv1.MachinePool
	// groups are the shard groups of the pool on the shards that it names.
	groups []*v1beta1.NstanceShardGroup
	// reported is the group as the shard of the instance reports it.
	reported shard.Group
}

// pending is what the end of an instance has to wait for, "" for nothing. A pool
// that is paused does not choose, and one that goes chooses whoever ends.
func (s poolScale) pending(shardID, instance string) string {
	if s.pool == nil || controller.PausedBy(nil, s.pool) != "" {
		return ""
	}
	var size int32
	var own *v1beta1.NstanceShardGroup
	for _, group := range s.groups {
		size += group.Spec.Size
		if string(group.Spec.Shard) == shardID && group.DeletionTimestamp.IsZero() {
			own = group
		}
	}
	chosen := own != nil && slices.Contains(own.Spec.RemoveFirst, instance)
	switch {
	case !s.pool.DeletionTimestamp.IsZero():
		if own != nil && !chosen && own.Spec.Size > 0 {
			return fmt.Sprintf("pool %q is being deleted, and its size on shard %q is being lowered", s.pool.Name, shardID)
		}
	case s.machinePool == nil || s.machinePool.Spec.Replicas == nil || !s.machinePool.DeletionTimestamp.IsZero(),
		controller.PausedBy(nil, s.machinePool) != "":
		return ""
	case *s.machinePool.Spec.Replicas < size:
		return fmt.Sprintf("MachinePool %q is to have %d replicas, and it is being chosen which of %d go",
			s.machinePool.Name, *s.machinePool.Spec.Replicas, size)
	}
	if chosen && s.reported.ListsInstances && !slices.Contains(s.reported.RemoveFirst, instance) {
		return fmt.Sprintf("shard %q is being told not to replace the instance", shardID)
	}
	return ""
}

// awaitPool returns what the end of a member's instance still waits for, "" for
// nothing. A look that fails begins the wait anew: what cannot be read here keeps
// the pool from choosing, too.
func (c *Controller) awaitPool(ctx context.Context, seen observation, recalled *memory) (string, error) {
	if !poolMember(seen.machine) || recalled.ending != (pace{}) || ending(seen) {
		return "", nil
	}
	pending, err := c.pending(ctx, seen.machine)
	switch {
	case err != nil || pending == "":
		recalled.awaited = time.Time{}
		return "", err
	case recalled.awaited.IsZero():
		recalled.awaited = seen.now
	case seen.now.Sub(recalled.awaited) >= poolGrace:
		klog.FromContext(ctx).Info("The pool has not taken the end of the instance into account in time", "waited", poolGrace)
		return "", nil
	}
	return pending, nil
}

// pending looks at the pool of a member. The caches may be behind, so the last look
// is at the API server.
func (c *Controller) pending(ctx context.Context, machine *v1beta1.NstanceMachine) (string, error) {
	scale, err := c.poolScale(machine)
	if err != nil {
		return "", err
	}
	pending := scale.pending(shardOf(machine), instanceOf(machine))
	if pending != "" || scale.machinePool == nil {
		return pending, nil
	}
	name := scale.machinePool.Name
	scale.machinePool, err = c.machinePools.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the replicas of MachinePool %s: %w", c.key(name), err)
	}
	return scale.pending(shardOf(machine), instanceOf(machine)), nil
}

// ending tells whether the shard says that it ends the instance already. One that
// drains it may still be told not to replace it.
func ending(seen observation) bool {
	return seen.notice != nil && seen.notice.State != shard.Draining ||
		seen.listed != nil && seen.listed.State.Ends()
}

// poolScale reads the caches.
func (c *Controller) poolScale(machine *v1beta1.NstanceMachine) (poolScale, error) {
	var scale poolScale
	owner := controller.PoolOf(machine)
	if owner == nil {
		return scale, nil
	}
	name := owner.Name
	pool, err := c.poolLister.Get(name)
	if apierrors.IsNotFound(err) || err == nil && pool.UID != owner.UID {
		return scale, nil
	}
	if err != nil {
		return scale, fmt.Errorf("read pool %s from the cache: %w", c.key(name), err)
	}
	scale.pool = pool
	if found := controller.Indexed[clusterv1.MachinePool](c.machinePoolIndex, capi.ByPool, name); len(found) == 1 {
		scale.machinePool = found[0]
	}
	for _, id := range pool.Spec.Shards {
		name := v1beta1.ShardGroupName(string(pool.Spec.Group), string(id))
		group, err := c.shardGroupLister.Get(name)
		if apierrors.IsNotFound(err) || err == nil && !metav1.IsControlledBy(group, pool) {
			continue
		}
		if err != nil {
			return scale, fmt.Errorf("read shard group %s from the cache: %w", c.key(name), err)
		}
		scale.groups = append(scale.groups, group)
	}
	scale.reported, _ = c.groups.Get(shardOf(machine), string(machine.Spec.GroupRef.Name))
	return scale, nil
}
