// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import "time"

// ErrorEvent is an error that a shard server reports on its own, not in reply to a
// call: for example, its provider cannot create an instance, or a file of its
// configuration is not valid.
type ErrorEvent struct {
	// Group is the key of the affected group; empty when the error is about the
	// shard as a whole.
	Group string
	// InstanceID is the id of the affected instance; empty when there is no single
	// one.
	InstanceID string
	// Message is the server's text. It may be of any length.
	Message string
	// Time is when the error happened by the server's clock; zero when the server
	// does not report it.
	Time time.Time
}
