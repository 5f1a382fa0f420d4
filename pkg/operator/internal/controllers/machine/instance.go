// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// createInstance sends the create request to the shard. While the NstanceMachine is
// being deleted, it does so to get the id of an instance that may exist.
func (c *Controller) createInstance(ctx context.Context, observed observation, state *syncState) outcome {
	if state.instanceID != "" {
		return outcome{instanceID: state.instanceID}
	}
	nstanceMachine := observed.nstanceMachine
	deleting := !nstanceMachine.DeletionTimestamp.IsZero()
	if err := c.checkLocation(ctx, observed, state); err != nil {
		return outcome{err: err}
	}
	instance, err := c.shardClient.CreateInstance(ctx, observed.shardID, observed.requestID, instanceSpecOf(nstanceMachine))
	switch {
	case err == nil && instance.ID == "":
		err = fmt.Errorf("shard %q has created an instance and returned no id", observed.shardID)
		return outcome{err: err, problem: &problem{v1beta1.ReasonInstanceRefused, err.Error()}}
	case err == nil:
		klog.FromContext(ctx).Info("Instance requested", "shard", observed.shardID, "instance", instance.ID)
		state.instanceID = instance.ID
		return outcome{instanceID: instance.ID}
	case shard.IsDeclined(err) && deleting:
		// There is no instance: the shard would have returned its id.
		return outcome{final: true, err: c.removeFinalizer(ctx, nstanceMachine)}
	case shard.IsOutOfCapacity(err):
		return state.rejectForCapacity(observed, shard.Message(err))
	case shard.IsRejected(err) && !deleting:
		// A rejection is stored and not returned, because a retry would be rejected too.
		message, delay := shard.Message(err), rejectionRetry
		if shard.IsUnclear(err) && (state.rejection == nil || state.rejection.message != message) {
			delay = unclearRetry
		}
		state.rejection = &rejection{etag: observed.etag, until: observed.now.Add(delay), reason: v1beta1.ReasonInstanceRefused, message: message, declined: shard.IsDeclined(err)}
		return outcome{problem: &problem{v1beta1.ReasonInstanceRefused, message}, wait: delay}
	default:
		state.rejection = nil
		return outcome{err: err, problem: problemOf(err, v1beta1.ReasonInstanceRefused)}
	}
}

// instanceSpecOf returns the InstanceSpec of the create request.
func instanceSpecOf(nstanceMachine *v1beta1.NstanceMachine) shard.InstanceSpec {
	return shard.InstanceSpec{
		Group:        string(nstanceMachine.Spec.GroupRef.Name),
		InstanceType: nstanceMachine.Spec.InstanceType,
		Vars:         nstanceMachine.Spec.Vars,
	}
}

// deleteInstance has the shard delete the instance. The call is repeated until the
// shard reports that the instance is deleted.
func (c *Controller) deleteInstance(ctx context.Context, observed observation, state *syncState) outcome {
	waitingFor, err := c.waitForPool(ctx, observed, state)
	if err != nil {
		return outcome{err: err}
	}
	if waitingFor != "" {
		return outcome{problem: &problem{v1beta1.ReasonDeleting, waitingFor}, wait: poolRetry}
	}
	ctx, _ = audit.WithNewRequest(ctx)
	deleted, err := c.shardClient.DeleteInstance(ctx, observed.shardID, observed.instanceID)
	c.auditDeletion(ctx, observed, state, deleted, err)
	switch {
	case err != nil:
		return outcome{err: err, problem: problemOf(err, v1beta1.ReasonDeleting)}
	case deleted:
		klog.FromContext(ctx).V(2).Info("Instance deleted", "shard", observed.shardID, "instance", observed.instanceID)
		return outcome{final: true, err: c.removeFinalizer(ctx, observed.nstanceMachine)}
	default:
		return outcome{wait: state.deletions.schedule(observed.now)}
	}
}

// problemOf returns the problem of a failed call. Its reason is reason, unless the
// shard did not reply.
func problemOf(err error, reason string) *problem {
	if shard.IsUnreachable(err) {
		reason = controllers.UnreachableReason(err)
	}
	return &problem{reason, shard.Message(err)}
}
