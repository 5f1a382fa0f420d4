// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package grpcapi

import (
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"nstance.dev/operator/pkg/server/groups"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// setSettings reports the settings in effect, and the settings that were declared last. A
// group without a declaration reports an empty one, by which the client knows that the server
// supports declarations (docs/protocol.md#extensions).
func setSettings(status *nstancev1.GroupStatus, group *groups.Group) {
	groups.ReportSettings(status, group)
	status.Declared = &nstancev1.GroupSettings{}
	if group.Declared != nil {
		status.Declared = groups.SettingsMessage(*group.Declared)
	}
}

// revisionFrom returns nil for a client that sends no revision.
func revisionFrom(message *nstancev1.Revision) *groups.Revision {
	if message == nil {
		return nil
	}
	return &groups.Revision{UID: message.GetUid(), Generation: message.GetGeneration()}
}

// setRevision reports an empty revision for a group without one, by which the client
// knows that the server supports revisions (docs/protocol.md#extensions).
func setRevision(status *nstancev1.GroupStatus, revision *groups.Revision) {
	status.Revision = &nstancev1.Revision{}
	if revision != nil {
		status.Revision.Uid, status.Revision.Generation = revision.UID, revision.Generation
	}
}

// staleStatus returns FailedPrecondition with the detail that distinguishes a stale
// request from a rejected configuration.
func staleStatus(err *groups.StaleError) *status.Status {
	metadata := map[string]string{nstancev1.MetadataRevision: err.Revision.String()}
	if err.Stored != nil {
		metadata[nstancev1.MetadataStoredRevision] = err.Stored.String()
	}
	return withReason(codes.FailedPrecondition, err.Error(), nstancev1.ReasonStaleRevision, metadata)
}

// withReason returns a status with a detail that distinguishes it from other statuses with
// the same code.
func withReason(code codes.Code, message, reason string, metadata map[string]string) *status.Status {
	// A status that cannot be encoded loses its detail.
	plain := status.New(code, validText(message))
	detailed, failure := plain.WithDetails(&errdetails.ErrorInfo{Reason: reason, Domain: nstancev1.ErrorDomain, Metadata: metadata})
	if failure != nil {
		return plain
	}
	return detailed
}
