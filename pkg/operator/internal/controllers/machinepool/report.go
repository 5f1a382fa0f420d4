// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	applyv1beta1 "nstance.dev/operator/pkg/generated/applyconfiguration/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// Reasons of the events of type Normal.
const (
	// reasonScaled: the number of desired instances has changed.
	reasonScaled = "Scaled"
	// reasonShardsReachable: all shards are connected again.
	reasonShardsReachable = "ShardsReachable"
)

// warningReasons are the reasons for which a pool that is not ready gets an event,
// because a user can resolve them. The reasons of a shard are also recorded on its shard
// group.
var warningReasons = []string{
	v1beta1.ReasonUnknownShard,
	v1beta1.ReasonGroupInUse,
	v1beta1.ReasonMachinePoolConflict,
	v1beta1.ReasonTooManyReplicas,
	v1beta1.ReasonBelowMinimum,
	v1beta1.ReasonAmbiguousProviderID,
	v1beta1.ReasonNodeOfOtherShard,
	v1beta1.ReasonShardUnreachable,
	v1beta1.ReasonWrongShard,
	v1beta1.ReasonOtherCluster,
	v1beta1.ReasonConfigRejected,
	v1beta1.ReasonUnsupportedByServer,
	v1beta1.ReasonShardAhead,
	v1beta1.ReasonProviderError,
}

// recordChanges records the events of type Normal for a status that was written.
func (c *Controller) recordChanges(ctx context.Context, before *v1beta1.NstanceMachinePoolStatus, written *v1beta1.NstanceMachinePool) {
	after := &written.Status
	if from, to := before.DesiredReplicas, after.DesiredReplicas; from != nil && to != nil && *from != *to && written.DeletionTimestamp.IsZero() {
		note := fmt.Sprintf("from %d to %d instances", *from, *to)
		if *to < *from {
			limited, cancel := context.WithTimeout(ctx, writerTimeout)
			defer cancel()
			if writer := c.replicasWriter(limited, written.Name); writer != "" {
				note += "; " + writer
			}
		}
		controller.Record(c.recorder, written, reasonScaled, "Scale", note)
	}
	if meta.IsStatusConditionFalse(before.Conditions, v1beta1.ConditionShardsReachable) &&
		meta.IsStatusConditionTrue(after.Conditions, v1beta1.ConditionShardsReachable) {
		controller.Record(c.recorder, written, reasonShardsReachable, "Connect", "all shards of the pool are connected again")
	}
}

// recordProblem records the reason of the new status if the old one did not have it.
func (c *Controller) recordProblem(pool *v1beta1.NstanceMachinePool, status v1beta1.NstanceMachinePoolStatus) {
	problem := controller.TurnedFalse(pool.Status.Conditions, status.Conditions, v1beta1.ConditionReady)
	if problem != nil && slices.Contains(warningReasons, problem.Reason) {
		controller.Warn(c.recorder, pool, problem.Reason, "Distribute", problem.Message)
	}
}

// recordBlocked records that a guard blocks a scale-down, when it begins to.
func (c *Controller) recordBlocked(pool *v1beta1.NstanceMachinePool, after []metav1.Condition) {
	was, blocked := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionScalingDown), meta.FindStatusCondition(after, v1beta1.ConditionScalingDown)
	switch {
	case blocked == nil || blocked.Status != metav1.ConditionTrue || blocked.Reason == v1beta1.ReasonRemoving:
	case was != nil && was.Reason == blocked.Reason:
	case blocked.Reason == v1beta1.ReasonStabilizing || blocked.Reason == v1beta1.ReasonMinReady:
		controller.Record(c.recorder, pool, "ScaleDownDelayed", "Scale", blocked.Message)
	default:
		controller.Warn(c.recorder, pool, "ScaleDownBlocked", "Scale", blocked.Message)
	}
}

// recordShortfall records an event when the reason of the condition CapacityAvailable has
// changed, unless the first one is that all is well.
func (c *Controller) recordShortfall(pool *v1beta1.NstanceMachinePool, status v1beta1.NstanceMachinePoolStatus) {
	before := meta.FindStatusCondition(pool.Status.Conditions, v1beta1.ConditionCapacityAvailable)
	after := meta.FindStatusCondition(status.Conditions, v1beta1.ConditionCapacityAvailable)
	switch {
	case after == nil || before != nil && before.Reason == after.Reason || before == nil && after.Status == metav1.ConditionTrue:
	case after.Status == metav1.ConditionFalse:
		controller.Warn(c.recorder, pool, after.Reason, "Distribute", after.Message)
	default:
		controller.Record(c.recorder, pool, after.Reason, "Distribute", "no shard has a shortfall, and none has lent instances")
	}
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
	c.reportRotation(pool.Name, meta.FindStatusCondition(status.Conditions, v1beta1.ConditionRollingOut), d.rollout)
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
	c.recordProblem(observed.pool, status)
	c.recordBlocked(observed.pool, status.Conditions)
	c.recordShortfall(observed.pool, status)
	c.recordRotation(observed.pool, status.Conditions)
	c.recordUnhealthy(observed.pool, status.Conditions)
	if missing := controller.TurnedFalse(observed.pool.Status.Conditions, status.Conditions, v1beta1.ConditionNodesJoined); missing != nil {
		controller.Warn(c.recorder, observed.pool, missing.Reason, "Join", missing.Message)
	}
	c.recordChanges(ctx, &observed.pool.Status, written)
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
