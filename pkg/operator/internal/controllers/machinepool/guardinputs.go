// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/internal/distribute"
)

// observeGuarded reads what the guards of a pool need. Pools without guards read nothing.
func (c *Controller) observeGuarded(observed *observation) {
	pool := cache.MetaObjectToName(observed.pool)
	guards := observed.pool.Spec.ScaleDown
	if guards == nil || !observed.pool.DeletionTimestamp.IsZero() {
		c.scaleDowns.drop(pool)
		return
	}
	if observed.paused != "" || len(observed.machinePools) != 1 || observed.machinePools[0].Spec.Replicas == nil {
		return
	}
	now, replicas := c.clock.Now(), *observed.machinePools[0].Spec.Replicas
	observed.guarded = &guarded{now: now, stable: replicas, draining: c.isDraining, readySince: c.readySince}
	if guards.StabilizationSeconds == 0 || distribute.Surplus(currentSizes(observed.shards), replicas) == 0 {
		c.scaleDowns.drop(pool)
		return
	}
	seen := c.scaleDowns.observe(pool, observed.pool.UID, replicas, now)
	observed.guarded.stable, observed.guarded.stableAt = seen.stable(time.Duration(guards.StabilizationSeconds)*time.Second, now)
}

// isDraining reports whether the shard has announced the deletion of an instance.
func (c *Controller) isDraining(shard, id string) bool {
	_, found := c.notices.Get(shard, id)
	return found
}

// readySince returns since when the Node with a provider id has been Ready, or why it is
// not.
func (c *Controller) readySince(providerID string) (since time.Time, notReady string) {
	if providerID == "" {
		return time.Time{}, "has no provider id"
	}
	nodes := c.nodes.WithProviderID(providerID)
	switch len(nodes) {
	case 0:
		return time.Time{}, fmt.Sprintf("has no Node with provider id %q", providerID)
	case 1:
	default:
		return time.Time{}, fmt.Sprintf("has %d Nodes with provider id %q", len(nodes), providerID)
	}
	ready := controllers.ReadyCondition(nodes[0])
	if ready.Status != corev1.ConditionTrue {
		return time.Time{}, fmt.Sprintf("has Node %q, which is not Ready", nodes[0].Name)
	}
	return ready.LastTransitionTime.Time, ""
}

// readinessChanged enqueues the pools with guards that have an instance with the Node's
// provider id. Other changes of the Node are those of nodeChanged.
func (c *Controller) readinessChanged(before, after *corev1.Node) {
	if before == nil || after == nil || after.Spec.ProviderID == "" {
		return
	}
	was, is := controllers.ReadyCondition(before), controllers.ReadyCondition(after)
	if was.Status == is.Status && was.LastTransitionTime.Equal(&is.LastTransitionTime) {
		return
	}
	for _, group := range c.shardGroupsWith(after.Spec.ProviderID) {
		c.enqueueGuarded(group)
	}
}

// instancesChanged enqueues the pool of a cached group if it has guards: they count the
// instances that the shard group does not report.
func (c *Controller) instancesChanged(shard, key string) {
	if group, err := c.shardGroupLister.Get(v1beta1.ShardGroupName(key, shard)); err == nil {
		c.enqueueGuarded(group)
	}
}

// enqueueGuarded enqueues the pool of a shard group if it has guards.
func (c *Controller) enqueueGuarded(group *v1beta1.NstanceShardGroup) {
	name := poolOf(group)
	if name == "" {
		return
	}
	if pool, err := c.poolLister.Get(name); err == nil && pool.Spec.ScaleDown != nil {
		c.queue.AddAfter(c.key(name), shardGroupBatch)
	}
}

// setScalingDown sets the condition of a guarded scale-down, and removes it if there is
// none.
func setScalingDown(status *v1beta1.NstanceMachinePoolStatus, generation int64, scalingDown *scalingDown) {
	if scalingDown == nil {
		meta.RemoveStatusCondition(&status.Conditions, v1beta1.ConditionScalingDown)
		return
	}
	controller.SetCondition(&status.Conditions, generation, v1beta1.ConditionScalingDown,
		scalingDown.status, scalingDown.reason, scalingDown.message)
}

// incomplete returns why a pool whose scale-down is delayed is not ready.
func (s *scalingDown) incomplete() *problem {
	if s == nil {
		return nil
	}
	return &problem{v1beta1.ReasonScaling, "the scale-down is done in steps; the condition ScalingDown has its state"}
}

// recordBlocked records that a guard blocks a scale-down, when it begins to.
func (c *Controller) recordBlocked(pool *v1beta1.NstanceMachinePool, after []metav1.Condition) {
	blocked := controller.TurnedFalse(pool.Status.Conditions, after, v1beta1.ConditionScalingDown)
	switch {
	case blocked == nil:
	case blocked.Reason == v1beta1.ReasonStabilizing || blocked.Reason == v1beta1.ReasonMinReady:
		controller.Record(c.recorder, pool, "ScaleDownDelayed", "Scale", blocked.Message)
	default:
		controller.Warn(c.recorder, pool, "ScaleDownBlocked", "Scale", blocked.Message)
	}
}
