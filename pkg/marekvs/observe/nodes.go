// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package observe

import (
	"maps"
	"time"
)

// Node is the observed state of a node.
type Node struct {
	Process     Process
	Terminating bool
	// Members and Rounds are reported by the node, nil if it did not report them.
	Members, Rounds *int64
}

type identity struct {
	process     Process
	terminating bool
}

// Nodes remembers when the nodes of a cluster last changed: a Pod was created or deleted,
// a container restarted, or a node saw another number of nodes.
type Nodes struct {
	changed time.Time
	// known has the nodes by ordinal.
	known map[int32]identity
	// members is the number of nodes that each node saw last.
	members map[Process]int64
	// rounds has the rounds of each node at its first report after the change.
	rounds map[Process]int64
}

// Observe compares the nodes, by ordinal, with the nodes of the last call. The first call
// counts as a change.
func (n *Nodes) Observe(now time.Time, nodes map[int32]Node) {
	known := make(map[int32]identity, len(nodes))
	members := map[Process]int64{}
	changed := n.known == nil
	for ordinal, node := range nodes {
		known[ordinal] = identity{node.Process, node.Terminating}
		before, seen := n.members[node.Process]
		switch {
		case node.Members != nil:
			members[node.Process] = *node.Members
			changed = changed || seen && before != *node.Members
		case seen:
			members[node.Process] = before
		}
	}
	if changed || !maps.Equal(known, n.known) {
		n.changed = now
		n.rounds = map[Process]int64{}
	}
	n.known, n.members = known, members
	for _, node := range nodes {
		if node.Rounds == nil {
			continue
		}
		// A counter that fell was reset by a restart.
		if first, ok := n.rounds[node.Process]; !ok || *node.Rounds < first {
			n.rounds[node.Process] = *node.Rounds
		}
	}
}

// SinceChange returns how long the nodes have been the same.
func (n *Nodes) SinceChange(now time.Time) time.Duration { return now.Sub(n.changed) }

// Rounds returns how many rounds a node has finished since the change, nil if it does not
// report them.
func (n *Nodes) Rounds(node Node) *int64 {
	first, ok := n.rounds[node.Process]
	if node.Rounds == nil || !ok {
		return nil
	}
	since := *node.Rounds - first
	return &since
}
