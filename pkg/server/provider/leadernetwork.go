// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider

import (
	"context"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// LeaderNetwork gives the VM of the leading server an address that stays the same when the
// leader changes (docs/server.md#leader-network). It has no goroutines: the address belongs
// to the leadership, during which there may be several Providers.
type LeaderNetwork interface {
	// Assign takes the address from any other VM and gives it to this server's VM. It returns
	// nil only if the address certainly belongs to this VM. It is not enough that the cloud
	// has accepted a request, or shows the interface as in use. If this VM already has the
	// address, nothing changes.
	//
	// The context lasts as long as the leadership: Assign calls deadline.Check before each
	// request that changes something. Each such request also names the state that was read,
	// by the id of an attachment or a fingerprint. So a server that was paused cannot take
	// the address from the next leader when it continues. The context ends after
	// request_timeout. Then the server repeats the call, which continues the work.
	Assign(ctx context.Context, network Network) error
	// Release takes the address from this VM. If the VM does not have it, nothing changes,
	// and Release returns nil. The server also calls it after it has lost the leadership, so
	// it must never take the address from another VM.
	Release(ctx context.Context, network Network) error
	// AssignInterval is how often the server calls Assign again while it leads.
	AssignInterval() time.Duration
}

// Network is shard.leader_network in the configuration.
type Network struct {
	// IP is the address.
	IP netip.Addr
	// InterfaceID identifies the interface that has the address, or the interface of this VM
	// that gets the address. Not every provider needs it.
	InterfaceID string
}

// LeaderNetworkOptions are implemented by the Options of a provider with a LeaderNetwork. For
// other providers, a configuration with shard.leader_network is rejected.
type LeaderNetworkOptions interface {
	// ValidateLeaderNetwork returns every rule that the network at path breaks. Its IP is
	// known to be a unicast address.
	ValidateLeaderNetwork(path *field.Path, network Network) field.ErrorList
	// NewLeaderNetwork returns the LeaderNetwork of a shard. The options have been
	// validated.
	NewLeaderNetwork(shard Shard) (LeaderNetwork, error)
}
