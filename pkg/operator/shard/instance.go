// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import "time"

// InstanceState is the state of an instance as servers report it
// (docs/protocol.md#instances). The set is open: a server may report other states.
type InstanceState string

// States that servers are known to report. A draining instance is running.
const (
	InstancePending     InstanceState = "pending"
	InstanceRunning     InstanceState = "running"
	InstanceStopped     InstanceState = "stopped"
	InstanceFailed      InstanceState = "failed"
	InstanceTerminating InstanceState = "terminating"
	// InstanceTerminated is an instance that was deleted and that the server still
	// has a record of.
	InstanceTerminated InstanceState = "terminated"
)

// IsTerminating reports whether an instance is being deleted or was deleted. It is
// false for a draining instance: the server may withdraw the drain.
func (s InstanceState) IsTerminating() bool {
	return s == InstanceTerminating || s == InstanceTerminated
}

// InstanceSpec describes an on-demand instance to create.
type InstanceSpec struct {
	// Group is the key of the group whose template the instance is created from.
	Group string
	// InstanceType overrides the group's; empty means the group's.
	InstanceType string
	// Vars are merged over the group's.
	Vars map[string]string
}

// Instance is one instance as a shard server reports it.
type Instance struct {
	// ID is assigned by the server.
	ID    string
	State InstanceState
	// ProviderID is empty until the provider has assigned one, and in the reply to
	// CreateInstance.
	ProviderID string
	// DeleteAt is the latest time at which a draining instance is deleted. It is
	// zero for other instances, and on servers that do not report it.
	DeleteAt time.Time
}
