// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package instance defines instances: their group, state, record and drain.
package instance

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
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

// GroupKey identifies a group of this shard.
type GroupKey struct {
	Tenant string
	Group  string
}

// String returns {tenant}/{group}.
func (k GroupKey) String() string {
	return k.Tenant + "/" + k.Group
}

// Compare orders keys by tenant, then by group.
func (k GroupKey) Compare(other GroupKey) int {
	return cmp.Or(strings.Compare(k.Tenant, other.Tenant), strings.Compare(k.Group, other.Group))
}

// State is the state of an instance.
type State int

const (
	// Pending instances were or will be requested from the provider, which has
	// not created them yet.
	Pending State = iota
	// Running instances exist, and their provider reports no problem.
	Running
	// Impaired instances run, but their provider reports them as unhealthy.
	// Their workloads can still be moved away.
	Impaired
	// Stopped instances exist but do not run, or are about to stop.
	Stopped
	// Failed instances will never run.
	Failed
	// Missing instances existed, but their provider no longer lists them.
	// Providers never report this state: the server derives it.
	Missing
	// Terminating instances are being deleted. They never leave this state.
	Terminating
)

// VM is one instance as its provider reports it.
type VM struct {
	// ID is the permanent identity of the instance, a puidv7. The provider stores
	// it as metadata of the machine.
	ID string
	// ProviderID is the provider's own id. It may be empty while pending.
	ProviderID string
	Group      GroupKey
	// Origin is what the provider has stored of the instance's record.
	Origin Origin
	// State is never Missing.
	State State
	// Reason is why the instance is impaired, stopped or failed, in words for people. It
	// may be empty.
	Reason string
	// Addresses are those of the machine, the one to prefer first.
	Addresses []netip.Addr
	// Expected is true of an instance that the provider has not found yet: it only
	// existed when it was last reported.
	Expected bool
	// Unlisted is true of an instance that the latest list of the provider has left out,
	// until its machine was found, or is known to be missing. That alone is no change that
	// the provider reports: lists may be wrong for a long time.
	Unlisted bool
}

// Equal reports whether two reports are the same but for Unlisted.
func (v VM) Equal(other VM) bool {
	return v.ID == other.ID && v.ProviderID == other.ProviderID && v.Group == other.Group && v.Origin == other.Origin &&
		v.State == other.State && v.Reason == other.Reason && slices.Equal(v.Addresses, other.Addresses) && v.Expected == other.Expected
}

// Origin is the part of a record that a provider stores with the instance, as metadata
// of the machine. A server that has lost the record creates it again from there.
type Origin struct {
	// OnDemand and IdempotencyKey are those of the record.
	OnDemand       bool
	IdempotencyKey string
	// InfraConfigHash is that of the record. It is empty for an instance of a server
	// that did not store it.
	InfraConfigHash string
}

// AgentState is what the server knows of the agent of an instance.
type AgentState int

const (
	// AgentNone means that nothing is expected: the instance runs no agent, is not listed
	// by its provider, or is not going to run.
	AgentNone AgentState = iota
	// AgentAwaited means that the agent has not registered, or not reported since: the
	// instance is coming up.
	AgentAwaited
	// AgentUnknown means that the agent has registered, and has not reported since this
	// server leads.
	AgentUnknown
	// AgentReporting means that the agent reports.
	AgentReporting
	// AgentLost means that the agent does not report any more, which makes the instance
	// impaired.
	AgentLost
)

// Agent is what the server knows of the agent of an instance. It is kept in memory only:
// a server that begins to lead starts with nothing.
type Agent struct {
	State AgentState
	// Since is when the state began, or when this server began to lead. It is zero for an
	// instance that does not run yet.
	Since time.Time
	// Reason is why the agent counts as lost, for people.
	Reason string
	// Notice is the termination that the provider has announced, nil if there is none.
	Notice *Notice
}

// Notice announces that the provider will terminate an instance.
type Notice struct {
	// Action is what the provider will do, in its own words.
	Action string
	// Deadline is when, zero if the provider has not announced a time.
	Deadline time.Time
}

// Registration is the registration of the agent of an instance. It is part of the record
// and binds the instance to one key for good: every further certificate is for this key.
type Registration struct {
	// PublicKeyPEM is the key of the agent, PKIX.
	PublicKeyPEM string `json:"public_key_pem"`
	// CertSerial is the serial number of its latest certificate in hexadecimal digits,
	// and ExpiresAt is when that expires.
	CertSerial string    `json:"cert_serial"`
	ExpiresAt  time.Time `json:"expires_at"`
	// RegisteredAt is when the agent used the key for the first time.
	RegisteredAt time.Time `json:"registered_at"`
	// IPv4, IPv6 and Hostname are what the agent reports of its machine. Each may be
	// empty.
	IPv4     string `json:"private_ipv4,omitempty"`
	IPv6     string `json:"private_ipv6,omitempty"`
	Hostname string `json:"hostname,omitempty"`
}
