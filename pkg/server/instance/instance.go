// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package instance defines instances: their group, state, record and drain.
package instance

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/server/pki"
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
	ReasonRotated      = "rotated"
	ReasonReplaced     = "replaced"
	// ReasonNotPreferred means that an instance of a better candidate takes its place.
	ReasonNotPreferred = "not-preferred"
)

// NextDeletion is an instance that is being deleted, or would be deleted if its group were smaller.
type NextDeletion struct {
	ID string
	// Reason is why it is being deleted or is to be replaced, "" if only the size decides.
	Reason string
	// Outdated is why it would be replaced if it works, "" if it is up to date.
	Outdated string
}

// RotationProgress counts the managed instances of a group as its rotation does.
type RotationProgress struct {
	// Outdated has the numbers of outdated instances that are not being deleted, by reason.
	Outdated map[string]int
	// UpToDate is how many instances are up to date, with those that are still to be created.
	UpToDate int
	// Above is how many instances exist above the size, with those that are being deleted, and Below
	// how many fewer instances work than the size.
	Above, Below int
	// Target names what the instances are compared with: the counts of two targets say nothing about
	// each other.
	Target string
	// ForcedAt is when the first outdated instance reaches the forced age, zero for never.
	ForcedAt time.Time
}

// Equal reports whether two reports are equal.
func (p RotationProgress) Equal(other RotationProgress) bool {
	return maps.Equal(p.Outdated, other.Outdated) && p.UpToDate == other.UpToDate &&
		p.Above == other.Above && p.Below == other.Below && p.Target == other.Target && p.ForcedAt.Equal(other.ForcedAt)
}

// Instance is the server's view of an instance: its record, the provider's report, and the
// server's decisions about it.
type Instance struct {
	Record
	// State is the state that the provider reports. If the provider does not list the
	// instance, it is Missing, or Pending if the provider never listed it. A running instance
	// is Pending while its agent is awaited, and Impaired when its agent is lost.
	State State
	// StateReason is why the provider reports the instance as impaired, stopped, failed or
	// terminating, for people. It may be empty.
	StateReason string
	// MayReturn is true for a stopped instance that its provider may start again without a request.
	MayReturn bool
	// Agent is the state of the instance's agent, the zero value if no agent is expected.
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
	// Addresses are the addresses of the machine that the provider reports.
	Addresses []netip.Addr
	// Hostname is the host name of the machine that the provider reports.
	Hostname string
	// Stopped is true once the provider has reported that the instance is being terminated,
	// or was stopped and does not run again.
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
	// Request is the request that led to the decision, or the zero value. It is kept in
	// memory only.
	Request audit.Request
}

// BeingDeleted reports whether the instance is being drained or terminated.
func (i *Instance) BeingDeleted() bool {
	return i.Drain != nil || i.DeleteReason != "" || i.State == Terminating
}

// Down reports whether nothing runs on the instance, and nothing will run on it again.
func (i *Instance) Down() bool { return i.State.Down() }

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

// Down reports whether nothing runs on an instance in this state, and nothing will run on it
// again.
func (s State) Down() bool {
	return s == Stopped || s == Failed || s == Missing
}

// VM is one instance as its provider reports it.
type VM struct {
	// ID is the permanent identity of the instance, a puidv7. The provider stores
	// it as metadata of the machine.
	ID string
	// ProviderID is the provider's own id. It may be empty while pending.
	ProviderID string
	Group      GroupKey
	// Origin is the part of the instance's record that the provider has stored.
	Origin Origin
	// State is never Missing.
	State State
	// Reason is why the instance is impaired, stopped, failed or terminating, in words for
	// people. It may be empty.
	Reason string
	// MayReturn is true for a stopped instance that its provider starts again without a request,
	// as after a restart of the host.
	MayReturn bool
	// Addresses are the addresses of the machine, the preferred address first.
	Addresses []netip.Addr
	// Hostname is the host name, usually with a domain, that the provider's network gives to
	// the machine. It is empty if the provider gives it no other name than its id.
	Hostname string
	// Expected is true if the provider has not found the instance yet: it only existed when
	// it was last reported.
	Expected bool
	// Unlisted is true if the latest list of the provider has left the instance out, until
	// its machine is found or confirmed to be missing. Providers do not report a change of
	// Unlisted alone: lists may be wrong for a long time.
	Unlisted bool
}

// Equal reports whether two reports are the same but for Unlisted.
func (v VM) Equal(other VM) bool {
	return v.ID == other.ID && v.ProviderID == other.ProviderID && v.Group == other.Group && v.Origin == other.Origin &&
		v.State == other.State && v.Reason == other.Reason && v.MayReturn == other.MayReturn && slices.Equal(v.Addresses, other.Addresses) &&
		v.Hostname == other.Hostname && v.Expected == other.Expected
}

// Origin is the part of a record that a provider stores with the instance, as metadata
// of the machine. A server that has lost the record creates it again from there.
type Origin struct {
	// OnDemand and IdempotencyKey are copied from the record.
	OnDemand       bool
	IdempotencyKey string
	// InfraConfigHash is copied from the record. It is empty if the server that created the
	// instance did not store it.
	InfraConfigHash string
}

// AgentState is the server's view of the agent of an instance.
type AgentState int

const (
	// AgentNone means that no agent is expected: the instance runs no agent, is not listed by
	// its provider, or is not going to run.
	AgentNone AgentState = iota
	// AgentAwaited means that the agent has not registered, or not reported since that its
	// machine is ready: the instance is coming up.
	AgentAwaited
	// AgentUnknown means that the agent has registered, and has not reported since this
	// server leads.
	AgentUnknown
	// AgentReporting means that the latest report of the agent is not overdue.
	AgentReporting
	// AgentLost means that the agent has stopped reporting, which makes the instance
	// impaired.
	AgentLost
)

// Agent is the server's view of the agent of an instance. It is kept in memory only, so a new
// leader begins without reports.
type Agent struct {
	State AgentState
	// Since is when the state began, or when this server began to lead. It is zero for an
	// instance that does not run yet.
	Since time.Time
	// Reason is why the agent counts as lost, for people.
	Reason string
	// NotReady is why the machine of an agent that is awaited and reports is not ready, for people.
	NotReady string
	// Refused is why the last request of the agent to register was refused, for people. It is empty
	// if there was none since this server leads.
	Refused string
	// Notice is the termination that the provider has announced, or nil.
	Notice *Notice
}

// Notice announces that the provider will terminate an instance.
type Notice struct {
	// Action is the announced action, in the provider's own words.
	Action string
	// Deadline is when the provider will act, zero if it has not announced a time.
	Deadline time.Time
}

// Registration is the registration of the agent of an instance. It is part of the record
// and binds the instance to its key: only the owner of this key can replace it, by a renewal.
type Registration struct {
	// PublicKeyPEM is the key of the agent, PKIX.
	PublicKeyPEM string `json:"public_key_pem"`
	// NextPublicKeyPEM is another key that the agent's latest certificate is for, "" if there is
	// none. It becomes PublicKeyPEM when the agent uses the certificate, because the agent may
	// have lost the certificate.
	NextPublicKeyPEM string `json:"next_public_key_pem,omitempty"`
	// PreviousPublicKeyPEM was PublicKeyPEM before, and is accepted until PreviousUntil: the agent
	// still has connections with it.
	PreviousPublicKeyPEM string    `json:"previous_public_key_pem,omitempty"`
	PreviousUntil        time.Time `json:"previous_until,omitzero"`
	// CertSerial is the serial number of the agent's latest certificate in hexadecimal
	// digits, and ExpiresAt is when that certificate expires.
	CertSerial string    `json:"cert_serial"`
	ExpiresAt  time.Time `json:"expires_at"`
	// RegisteredAt is when the agent used the key for the first time.
	RegisteredAt time.Time `json:"registered_at"`
	// IPv4, IPv6 and Hostname describe the machine, as the agent reports them. Each may be
	// empty.
	IPv4     string `json:"private_ipv4,omitempty"`
	IPv6     string `json:"private_ipv6,omitempty"`
	Hostname string `json:"hostname,omitempty"`
	// Trust is nil if the agent does not say which authorities it trusts.
	Trust *pki.Trust `json:"trust,omitempty"`
}
