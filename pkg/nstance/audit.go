// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nstance

import (
	"context"

	"k8s.io/klog/v2"

	"nstance.dev/operator/pkg/audit"
	"nstance.dev/operator/pkg/shard"
)

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
