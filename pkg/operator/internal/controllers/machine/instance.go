// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
	"nstance.dev/operator/pkg/operator/shard"
)

// createInstance sends the create request to the shard. For an NstanceMachine that is being
// deleted, it repeats the request to get the id of an instance that may exist.
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
		// No instance exists: the shard would have returned its id.
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

// instanceSpecOf returns the spec for the create request of an NstanceMachine.
func instanceSpecOf(nstanceMachine *v1beta1.NstanceMachine) shard.InstanceSpec {
	spec := shard.InstanceSpec{
		Group:        string(nstanceMachine.Spec.GroupRef.Name),
		InstanceType: nstanceMachine.Spec.InstanceType,
		Vars:         nstanceMachine.Spec.Vars,
	}
	for _, key := range nstanceMachine.Spec.LoadBalancers {
		spec.LoadBalancers = append(spec.LoadBalancers, string(key))
	}
	return spec
}

// deleteInstance calls DeleteInstance. The call is repeated until the shard reports that the
// instance is deleted.
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

// problemOf returns the problem of a failed call. If the shard did not reply, the reason is
// that it is unreachable instead of reason.
func problemOf(err error, reason string) *problem {
	if shard.IsUnreachable(err) {
		reason = controllers.UnreachableReason(err)
	}
	return &problem{reason, shard.Message(err)}
}

// providerErrors are the last provider errors about the instances of NstanceMachines, by UID.
// Servers report a failed request but not the success of a later request, so an error counts
// until the instance runs. The zero value is empty.
type providerErrors struct {
	mu   sync.Mutex
	last map[types.UID]string
}

func (e *providerErrors) set(nstanceMachine types.UID, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.last == nil {
		e.last = make(map[types.UID]string)
	}
	e.last[nstanceMachine] = message
}

func (e *providerErrors) get(nstanceMachine types.UID) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last[nstanceMachine]
}

func (e *providerErrors) drop(nstanceMachine types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.last, nstanceMachine)
}

// errorReported stores an error about an instance. Errors about groups are reported by the
// controller of shard groups.
func (c *Controller) errorReported(shardID string, event shard.ErrorEvent) {
	if event.InstanceID == "" {
		return
	}
	for _, nstanceMachine := range c.indexed(byInstance, instanceKey(shardID, event.InstanceID)) {
		c.providerErrors.set(nstanceMachine.UID, event.Message)
		c.queue.AddAfter(cache.MetaObjectToName(nstanceMachine), controller.BatchPeriod)
	}
}
