// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package instance defines instances: their group, state, record and drain.
package instance

import (
	"time"

	"nstance.dev/operator/pkg/base/audit"
)

// Reasons for the deletion of an instance, as operators receive them.
const (
	ReasonScaleDown    = "scale-down"
	ReasonUnhealthy    = "unhealthy"
	ReasonExpired      = "expired"
	ReasonConfigDrift  = "config-drift"
	ReasonRequested    = "requested"
	ReasonUnregistered = "unregistered"
	ReasonSpot         = "spot"
	ReasonReturned     = "returned"
)

// Instance is everything that is known about an instance: its record, what its
// provider reports, and what the server has decided about it.
type Instance struct {
	Record
	// State is the state that the provider reports. It is Missing or Pending for
	// an instance that the provider does not list: Pending if it never did. An instance
	// that runs is Pending while its agent is awaited, and Impaired when its agent is
	// lost.
	State State
	// Agent is what is known of the agent of the instance, the zero value if nothing is
	// expected of it.
	Agent Agent
	// Known is true when the provider lists the instance now. A pending instance
	// that is not known must be created at the provider.
	Known bool
	// Found is true once the provider has found the instance, or was requested to create
	// it, since this server began to lead.
	Found bool
	// Unlisted is true while the provider looks for the instance, which its latest list has
	// left out.
	Unlisted bool
	// Stopped is true once the provider has reported that the instance is being terminated,
	// or was stopped.
	Stopped bool
	// Drain is nil unless the instance is to be deleted after a drain.
	Drain *Drain
	// DeleteReason is set before the server requests the deletion from the
	// provider.
	DeleteReason string
	// DeletionRequest is the request of the client that requested the deletion. It is kept
	// in memory only.
	DeletionRequest audit.Request
	// DeletedAt is set once the instance was deleted and its record removed. Such
	// an instance is kept for a while to answer late requests.
	DeletedAt time.Time
}

// Drain is a decision to delete an instance after its workloads have moved away.
// It is kept only in the cache: a server that loses it decides again.
type Drain struct {
	// Reason is one of the reasons above.
	Reason string
	// StartedAt is when the drain began.
	StartedAt time.Time
	// DeleteAt is when the instance is deleted without an acknowledgement.
	DeleteAt time.Time
	// Acknowledged is true once the operator has reported that the node is
	// drained.
	Acknowledged bool
	// Request is the request that the decision follows from, the zero value if there is
	// none. It is kept in memory only.
	Request audit.Request
}

// BeingDeleted reports whether the instance is being drained or terminated.
func (i *Instance) BeingDeleted() bool {
	return i.Drain != nil || i.DeleteReason != "" || i.State == Terminating
}

// Down reports whether nothing runs on the instance, and nothing will run on it
// again.
func (i *Instance) Down() bool {
	return i.State == Stopped || i.State == Failed || i.State == Missing
}
