// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package nstancev1

// ReasonNotServing is the reason in the google.rpc.ErrorInfo of each Unavailable of a
// server that leads its shard and cannot serve it before an administrator does something.
// The text of the error says what (docs/server-reference.md#lost-objects).
const ReasonNotServing = "NOT_SERVING"

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

// ReasonOutOfCapacity is the reason in the google.rpc.ErrorInfo of a CreateInstance that
// the server declines with ResourceExhausted: it has stored nothing, because the provider
// has no capacity or quota for the instance (docs/protocol.md#errors).
const ReasonOutOfCapacity = "OUT_OF_CAPACITY"
