// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"context"

	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/shard"
)

// ReasonDeletingMachine is the reason of the event for a Machine that the operator deletes.
const ReasonDeletingMachine = "DeletingMachine"

// CallResult returns the result of a call to a shard for the audit trail.
func CallResult(err error) audit.Result {
	switch {
	case err == nil:
		return audit.Accepted
	case shard.IsUnclear(err):
		return audit.Unknown
	case shard.IsRejected(err), shard.IsStale(err):
		return audit.Rejected
	default:
		return audit.Unknown
	}
}

// LogDeletion writes the line of the audit trail for a request to delete an object of the
// Kubernetes API, unless err is not nil: then nothing was deleted, or it is not known.
func LogDeletion(ctx context.Context, kind string, object klog.ObjectRef, reason string, err error) {
	if err == nil {
		audit.Entry{Action: audit.DeleteObject, Kind: kind, Name: object.String(), Writer: FieldManager, Reason: reason}.Log(ctx)
	}
}

// RecordMachineDeletion is LogDeletion of a Machine, and records an event about it, because
// its owner looks at its events and not at the log of the operator.
func RecordMachineDeletion(ctx context.Context, recorder events.EventRecorder, machine *clusterv1.Machine, reason string, err error) {
	LogDeletion(ctx, "Machine", klog.KObj(machine), reason, err)
	if err == nil {
		controller.Record(recorder, machine, ReasonDeletingMachine, "DeleteMachine", reason)
	}
}
