// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nstancev1

// The google.rpc.ErrorInfo of a request whose revision is older than an accepted one
// (docs/protocol.md#revisions). It distinguishes this FailedPrecondition from that of a
// rejected configuration.
const (
	ErrorDomain         = "nstance.dev"
	ReasonStaleRevision = "STALE_REVISION"
	// MetadataRevision is the revision of the request, and MetadataStoredRevision that
	// of the group, without a value when there is none. Both are UID/GENERATION.
	MetadataRevision       = "revision"
	MetadataStoredRevision = "stored-revision"
)
