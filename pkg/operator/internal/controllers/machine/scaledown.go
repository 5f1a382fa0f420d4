// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/capi"
	"nstance.dev/operator/pkg/base/distribute"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// If an instance of a pool is deleted, its shard replaces it, unless the pool has selected the
// instance for removal (distribute.Divide). In a scale-down an instance is therefore deleted
// only after the pool has selected it and the shard has confirmed that. Otherwise the
// replacement would exceed the size, and another instance would be deleted for it.
const (
	// poolGrace is how long the deletion of an instance waits for its pool, which may
	// be unable to select.
	poolGrace = 30 * time.Second
	// poolRetry is the delay between two checks of the pool.
	poolRetry = time.Second
)

// poolScale is the actual and the wanted size of a pool.
type poolScale struct {
	// pool and machinePool are nil if they do not exist; machinePool also if several refer to
	// the pool.
	pool        *v1beta1.NstanceMachinePool
	machinePool *clusterv1.MachinePool
	// groups are the shard groups of the pool on its shards.
	groups []*v1beta1.NstanceShardGroup
	// reported is the group as the shard of the instance reports it.
	reported shard.Group
}

// waitingFor returns what the deletion of an instance waits for, "" if it need not wait. A
// paused pool selects no candidates, and a pool that is being deleted accepts every deletion.
func (s poolScale) waitingFor(shardID, instanceID string) string {
	if s.pool == nil || controllers.PausedBy(nil, s.pool) != "" {
		return ""
	}
	var sizes []int32
	var own distribute.Shard
	for _, group := range s.groups {
		sizes = append(sizes, group.Spec.Size)
		if string(group.Spec.Shard) == shardID && group.DeletionTimestamp.IsZero() {
			own = distribute.Shard{ID: shardID, Size: group.Spec.Size, HasShardGroup: true, RemoveFirst: group.Spec.RemoveFirst}
		}
	}
	switch {
	case !s.pool.DeletionTimestamp.IsZero():
		if own.Replaces(instanceID) {
			return fmt.Sprintf("pool %q is being deleted, and its size on shard %q is being lowered", s.pool.Name, shardID)
		}
	case s.machinePool == nil || s.machinePool.Spec.Replicas == nil || !s.machinePool.DeletionTimestamp.IsZero(),
		controllers.PausedBy(nil, s.machinePool) != "":
		return ""
	case s.pool.Spec.ScaleDown != nil && own.Selected(instanceID):
		// A guard of the pool may delay the other removals for long.
	case distribute.Surplus(sizes, *s.machinePool.Spec.Replicas) > 0:
		return fmt.Sprintf("MachinePool %q wants %d replicas, and the pool is selecting which of %d instances are deleted",
			s.machinePool.Name, *s.machinePool.Spec.Replicas, distribute.Total(sizes))
	}
	if own.Selected(instanceID) && s.reported.ListsInstances && !slices.Contains(s.reported.RemoveFirst, instanceID) {
		return fmt.Sprintf("shard %q has not confirmed yet that it does not replace the instance", shardID)
	}
	return ""
}

// waitForPool returns what the deletion of a pool member's instance still waits for, "" if it
// need not wait. A failed read restarts the wait, because the pool cannot read the object
// either.
func (c *Controller) waitForPool(ctx context.Context, observed observation, state *syncState) (string, error) {
	if !observed.poolMember || !state.deletions.next.IsZero() || terminating(observed) {
		return "", nil
	}
	waitingFor, err := c.readPoolScale(ctx, observed)
	switch {
	case err != nil || waitingFor == "":
		state.waitingForPool = time.Time{}
		return "", err
	case state.waitingForPool.IsZero():
		state.waitingForPool = observed.now
	case observed.now.Sub(state.waitingForPool) >= poolGrace:
		klog.FromContext(ctx).Info("Deleting the instance although its pool has not selected it in time", "waited", poolGrace)
		return "", nil
	}
	return waitingFor, nil
}

// readPoolScale returns what a deletion waits for. If the caches show no reason to wait, it
// reads the replicas from the API server, because caches may be stale.
func (c *Controller) readPoolScale(ctx context.Context, observed observation) (waitingFor string, err error) {
	scale, err := c.observePoolScale(observed)
	if err != nil {
		return "", err
	}
	waitingFor = scale.waitingFor(observed.shardID, observed.instanceID)
	if waitingFor != "" || scale.machinePool == nil {
		return waitingFor, nil
	}
	scale.machinePool, err = c.readMachinePool(ctx, scale.machinePool.Name)
	if err != nil || scale.machinePool == nil {
		return "", err
	}
	return scale.waitingFor(observed.shardID, observed.instanceID), nil
}

// terminating reports whether the shard is deleting the instance already. A shard that only
// drains the instance may still replace it.
func terminating(observed observation) bool {
	return observed.notice != nil && observed.notice.State != shard.Draining ||
		observed.listed != nil && observed.listed.State.IsTerminating()
}

// observePoolScale reads the caches.
func (c *Controller) observePoolScale(observed observation) (poolScale, error) {
	var scale poolScale
	ref := controllers.PoolOf(observed.nstanceMachine)
	if ref == nil {
		return scale, nil
	}
	pool, err := controller.GetCached(c.poolLister.Get, "pool", c.key(ref.Name))
	if err != nil || pool == nil || pool.UID != ref.UID {
		return scale, err
	}
	scale.pool = pool
	if found := controller.Indexed[clusterv1.MachinePool](c.machinePoolIndex, capi.ByPool, pool.Name); len(found) == 1 {
		scale.machinePool = found[0]
	}
	for _, id := range pool.Spec.Shards {
		name := v1beta1.ShardGroupName(string(pool.Spec.Group), string(id))
		shardGroup, err := controller.GetCached(c.shardGroupLister.Get, "shard group", c.key(name))
		if err != nil {
			return scale, err
		}
		if shardGroup != nil && metav1.IsControlledBy(shardGroup, pool) {
			scale.groups = append(scale.groups, shardGroup)
		}
	}
	scale.reported, _ = c.groups.Get(observed.shardID, string(observed.nstanceMachine.Spec.GroupRef.Name))
	return scale, nil
}
