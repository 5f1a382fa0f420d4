// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shard

import "time"

// InstanceState is what an instance is doing in the words of the wire contract.
// The set is open: a server may say what is not listed here.
type InstanceState string

// States that servers are known to report. An instance that drains is running.
const (
	InstancePending     InstanceState = "pending"
	InstanceRunning     InstanceState = "running"
	InstanceStopped     InstanceState = "stopped"
	InstanceFailed      InstanceState = "failed"
	InstanceTerminating InstanceState = "terminating"
	// InstanceTerminated is an instance that is gone and still remembered.
	InstanceTerminated InstanceState = "terminated"
)

// Ends tells whether an instance is being ended or has ended. One that drains may
// yet stay.
func (s InstanceState) Ends() bool { return s == InstanceTerminating || s == InstanceTerminated }

// InstanceOrder is what an on-demand instance is to be made of.
type InstanceOrder struct {
	// Group is the key of the group whose template the instance has.
	Group string
	// InstanceType overrides the group's; empty leaves it.
	InstanceType string
	// Vars are merged over the group's.
	Vars map[string]string
}

// Instance is one instance as a shard server reports it.
type Instance struct {
	// ID is the id that the server gave it.
	ID    string
	State InstanceState
	// ProviderID is empty until the provider has given one, and in the answer to
	// an order.
	ProviderID string
	// DeleteAt is set while the instance drains, by servers that tell: when it is
	// deleted at the latest.
	DeleteAt time.Time
}
