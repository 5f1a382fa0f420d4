// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storetest

import (
	"maps"
	"slices"
	"strings"
)

// DefaultGossipCluster is the gossip cluster of a node that gets none
// (marekvs-server/src/main.rs:181).
const DefaultGossipCluster = "marekvs"

// Network is the Pod network in which the nodes of all clusters gossip.
type Network struct{ peers map[string]*Peer }

// Peer is a running node in a Network.
type Peer struct {
	// Cluster is the gossip cluster, the cluster_id of chitchat
	// (marekvs-cluster/src/lib.rs:206).
	Cluster string
	// Node is the ordinal, which is the same in every cluster (marekvs-server/src/main.rs:36).
	Node int32
	// Address is the address of the Pod.
	Address string

	// known has every peer that this peer has heard of. A dead peer stays known for hours
	// (https://docs.rs/chitchat/0.9.0/chitchat/struct.FailureDetectorConfig.html).
	known map[*Peer]bool
}

// Start starts a peer, which finds the peers at the addresses of its seeds.
func (n *Network) Start(p *Peer, seeds ...string) {
	if n.peers == nil {
		n.peers = map[string]*Peer{}
	}
	p.known = map[*Peer]bool{p: true}
	n.peers[p.Address] = p
	for _, seed := range seeds {
		n.send(p, seed)
	}
}

// Stop ends the peer at an address. The address is free for a Pod of any cluster.
func (n *Network) Stop(address string) { delete(n.peers, address) }

// Gossip lets every peer send to all peers that it knows, also to the dead peers, which may have
// come back.
func (n *Network) Gossip() {
	for _, address := range slices.Sorted(maps.Keys(n.peers)) {
		p := n.peers[address]
		for _, to := range slices.SortedFunc(maps.Keys(p.known), byAddress) {
			n.send(p, to.Address)
		}
	}
}

// send lets a peer exchange what it knows with the peer that has an address now. A peer of another
// gossip cluster ignores it.
func (n *Network) send(p *Peer, address string) {
	to := n.peers[address]
	if to == nil || to.Cluster != p.Cluster {
		return
	}
	maps.Copy(to.known, p.known)
	maps.Copy(p.known, to.known)
}

// Members returns the addresses of the live nodes that a peer sees, by ordinal. Of two nodes with
// the same ordinal it sees one (marekvs-cluster/src/lib.rs:283).
func (n *Network) Members(p *Peer) map[int32]string {
	members := map[int32]string{}
	for _, other := range slices.SortedFunc(maps.Keys(p.known), byAddress) {
		if _, twice := members[other.Node]; !twice && n.peers[other.Address] == other {
			members[other.Node] = other.Address
		}
	}
	return members
}

func byAddress(a, b *Peer) int { return strings.Compare(a.Address, b.Address) }
