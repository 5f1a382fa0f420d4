// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import "time"

// NoticeState is the stage that the deletion of an instance has reached.
type NoticeState string

// The states of a notice (docs/protocol.md#drains).
const (
	// Draining: the instance waits for the acknowledgement that its Node is
	// drained, until DeleteAt at the latest.
	Draining NoticeState = "pending_deletion"
	// Deleting: the instance is being deleted; it is too late to drain.
	Deleting NoticeState = "deleting"
	// Deleted: the instance was deleted.
	Deleted NoticeState = "deleted"
)

// DeletionNotice is what a shard server reports about the planned, current or past
// deletion of an instance.
type DeletionNotice struct {
	InstanceID string
	// ProviderID is that of the instance's Node.
	ProviderID string
	// Group is the key of the instance's group.
	Group string
	State NoticeState
	// Reason is the server's, such as unhealthy or config-drift.
	Reason string
	// Since is when the drain began. DeleteAt is when the server deletes the
	// instance, whether or not the drain was acknowledged. Both are zero when the
	// server does not report them. Both are by the clock of the server.
	Since, DeleteAt time.Time
	// Deadline is when the server has deleted the instance, by the clock of this
	// process and at the earliest: the arrival of the notice, on the current watch,
	// plus the time from Since to DeleteAt. It is zero if one of them is.
	Deadline time.Time
	// Announced grows each time the server reports this drain. It never falls, not
	// even when the drain was withdrawn meanwhile. The server reports a drain again
	// after each reconnection, and expects an acknowledgement each time.
	Announced int64
}
