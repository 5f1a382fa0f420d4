// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import "time"

// NoticeState is how far the end of an instance has come.
type NoticeState string

// The states of a notice are those of the wire contract.
const (
	// Draining: the instance waits for the acknowledgement that its Node is
	// drained, until DeleteAt at the latest.
	Draining NoticeState = "pending_deletion"
	// Deleting: the instance is being deleted; it is too late to drain.
	Deleting NoticeState = "deleting"
	// Deleted: the instance is gone.
	Deleted NoticeState = "deleted"
)

// Notice is what a shard server tells of the coming or past end of an instance.
type Notice struct {
	InstanceID string
	// ProviderID finds the Node.
	ProviderID string
	// Group is the key of the instance's group.
	Group string
	State NoticeState
	// Reason is the server's, such as unhealthy or config-drift.
	Reason string
	// Since is when the drain began, DeleteAt when the server deletes the instance
	// whether or not it was acknowledged. Both are zero when the server did not
	// say.
	Since, DeleteAt time.Time
	// Announced grows each time the server tells of this drain, and never falls,
	// not even when the drain was withdrawn meanwhile: the server tells again after
	// each reconnection, and wants an acknowledgement for each.
	Announced int64
}
