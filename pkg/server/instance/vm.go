// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package instance

import (
	"net/netip"
	"slices"
)

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
