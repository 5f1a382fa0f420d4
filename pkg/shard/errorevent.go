// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import "time"

// ErrorEvent is an error that a shard server reports by itself, not as the answer
// to a call: its provider could not make an instance, for one, or a file of its
// configuration is not valid.
type ErrorEvent struct {
	// Group is the key of the group it is about; empty when it is about the shard
	// as a whole.
	Group string
	// InstanceID is the instance it is about; empty when it is about no single one.
	InstanceID string
	// Message holds the server's words. They may be of any length.
	Message string
	// Time is when it happened by the server's clock; zero when the server did not
	// say.
	Time time.Time
}
