// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider

import (
	"context"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// LeaderNetwork gives the machine of the leader an address that stays the same when the
// leader changes (docs/server.md#leader-network). It has no goroutines: the address belongs
// to the leadership, during which there may be several Providers.
type LeaderNetwork interface {
	// Assign takes the address from any other machine and gives it to this one. It returns
	// nil only when the address certainly is this machine's: not when the cloud has accepted
	// a request, or shows the interface as in use. An address that is this machine's already
	// is not changed.
	//
	// The context lasts as long as the leadership: Assign calls deadline.Check before each
	// call that changes something, and makes each on condition of what it has read, by the
	// id of an attachment or a fingerprint. So a server that was paused cannot take the address
	// from the next leader when it continues. The context ends after request_timeout. A call
	// that has ended is repeated, and continues what the one before has begun.
	Assign(ctx context.Context, network Network) error
	// Release takes the address from this machine. That it is not this machine's is no
	// error, and then nothing is changed. It is also called after this server has lost the
	// leadership: it can take the address from no other machine.
	Release(ctx context.Context, network Network) error
	// AssignInterval is how often the server calls Assign again while it leads.
	AssignInterval() time.Duration
}

// Network is shard.leader_network in the configuration.
type Network struct {
	// IP is the address.
	IP netip.Addr
	// InterfaceID identifies what has the address at the provider, or which interface of
	// the machine gets it. Whether it is needed depends on the provider.
	InterfaceID string
}

// LeaderNetworkOptions are implemented by the Options of a provider that has a leader
// network. A configuration with one is rejected for any other provider.
type LeaderNetworkOptions interface {
	// ValidateLeaderNetwork returns every rule that the network at path breaks. Its IP is an
	// address that one machine can have.
	ValidateLeaderNetwork(path *field.Path, network Network) field.ErrorList
	// NewLeaderNetwork returns what assigns the address of a shard. The options have been
	// validated.
	NewLeaderNetwork(shard Shard) (LeaderNetwork, error)
}
