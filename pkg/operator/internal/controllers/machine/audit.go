// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machine

import (
	"context"
	"fmt"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/internal/controllers"
)

// auditDeletion writes the line of the audit trail for a call of DeleteInstance, and records
// an event when the shard accepts the deletion. Calls after that only query whether it is
// complete, as does one for an instance that the shard no longer has.
func (c *Controller) auditDeletion(ctx context.Context, observed observation, state *syncState, deleted bool, err error) {
	if state.deletionAccepted || deleted {
		return
	}
	state.deletionAccepted = err == nil
	entry := audit.Entry{
		Action: audit.DeleteInstance, Shard: observed.shardID, Group: string(observed.nstanceMachine.Spec.GroupRef.Name),
		Instance: observed.instanceID, To: "deleting", Generation: observed.nstanceMachine.Generation,
		Reason: "requested", Writer: deletedBy(observed), Result: controllers.CallResult(err), Err: err,
	}
	if observed.listed != nil {
		entry.From = string(observed.listed.State)
	}
	entry.Log(ctx)
	if err == nil {
		controller.Record(c.recorder, observed.nstanceMachine, reasonDeletingInstance, "DeleteInstance", fmt.Sprintf(
			"shard %q deletes instance %s; %s %s; %s", observed.shardID, observed.instanceID, audit.KeyRequestID, audit.RequestFrom(ctx).ID, entry.Writer))
	}
}

// deletedBy returns the object whose deletion deletes the instance. The API server does not
// store who has deleted it: its own audit log has that.
func deletedBy(observed observation) string {
	if machine := observed.machine; machine != nil && !machine.DeletionTimestamp.IsZero() {
		return fmt.Sprintf("Machine %s is deleted", machine.Name)
	}
	return fmt.Sprintf("NstanceMachine %s is deleted", observed.nstanceMachine.Name)
}
