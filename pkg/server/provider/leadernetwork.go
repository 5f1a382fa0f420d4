// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package provider

import (
	"context"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// LeaderNetwork is implemented by a Provider that can give the machine of the leader an
// address that stays the same when the leader changes (docs/server.md#leader-network).
type LeaderNetwork interface {
	// Assign takes the address from any other machine and gives it to this one. It returns
	// nil only when the address certainly is this machine's: not when the cloud has accepted
	// a request, or shows the interface as in use. An address that is this machine's already
	// is not changed.
	//
	// The context is one of CallContextFunc: Assign calls deadline.Check before each call
	// that changes something, and makes each on condition of what it has read, by the id of
	// an attachment or a fingerprint. So a server that was paused cannot take the address
	// from the next leader when it continues. A call that is canceled is repeated, and
	// continues what the one before has begun.
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

// LeaderNetworkOptions are implemented by the Options of a Provider that implements
// LeaderNetwork. A configuration with a leader network is rejected for any other provider.
type LeaderNetworkOptions interface {
	// ValidateLeaderNetwork returns every rule that the network at path breaks. Its IP is an
	// address that one machine can have.
	ValidateLeaderNetwork(path *field.Path, network Network) field.ErrorList
}
