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
	// Members, Rounds and Moved are reported by the node, nil if it did not report them.
	Members, Rounds, Moved *int64
}

type identity struct {
	process     Process
	terminating bool
}

// Nodes remembers when the nodes of a cluster last changed: a Pod was created or deleted,
// a container restarted, or a node saw another number of nodes. It also remembers how many rounds
// each node has begun since then, and since copies last moved between any nodes.
type Nodes struct {
	changed time.Time
	// known has the nodes by ordinal.
	known map[int32]identity
	// members is the number of nodes that each node saw last.
	members map[Process]int64
	// moved is how much each node had moved at its last report.
	moved map[Process]int64
	// rounds has the rounds of each node at its first report after the nodes changed, quiet at its
	// first report after the nodes changed or copies moved.
	rounds, quiet map[Process]int64
}

// Observe compares the nodes, by ordinal, with the nodes of the last call. The first call
// counts as a change.
func (n *Nodes) Observe(now time.Time, nodes map[int32]Node) {
	known := make(map[int32]identity, len(nodes))
	members, moved := map[Process]int64{}, map[Process]int64{}
	changed, moves := n.known == nil, false
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
		before, seen = n.moved[node.Process]
		switch {
		case node.Moved != nil:
			moved[node.Process] = *node.Moved
			moves = moves || seen && before != *node.Moved
		case seen:
			moved[node.Process] = before
		}
	}
	changed = changed || !maps.Equal(known, n.known)
	if changed {
		n.changed = now
		n.rounds = map[Process]int64{}
	}
	if changed || moves {
		n.quiet = map[Process]int64{}
	}
	n.known, n.members, n.moved = known, members, moved
	for _, node := range nodes {
		if node.Rounds == nil {
			continue
		}
		// A counter that fell was reset by a restart.
		for _, counted := range []map[Process]int64{n.rounds, n.quiet} {
			if first, ok := counted[node.Process]; !ok || *node.Rounds < first {
				counted[node.Process] = *node.Rounds
			}
		}
	}
}

// SinceChange returns how long the nodes have been the same.
func (n *Nodes) SinceChange(now time.Time) time.Duration { return now.Sub(n.changed) }

// Rounds returns how many whole rounds a node has had since the nodes changed, nil if it does not
// report its rounds.
func (n *Nodes) Rounds(node Node) *int64 { return wholeRounds(n.rounds, node) }

// QuietRounds returns how many whole rounds a node has had since the nodes changed and since copies
// last moved between any nodes, nil if it does not report its rounds and what it moved.
func (n *Nodes) QuietRounds(node Node) *int64 {
	if node.Moved == nil {
		return nil
	}
	return wholeRounds(n.quiet, node)
}

// wholeRounds returns the rounds of a node that have begun and ended since a first report. The
// counter rises when a round begins (github.com/yannick/marekvs, commit defc648,
// crates/marekvs-repl/src/lib.rs:1454): the round of the first report began before it, and the last
// round may not have ended.
func wholeRounds(first map[Process]int64, node Node) *int64 {
	from, ok := first[node.Process]
	if node.Rounds == nil || !ok {
		return nil
	}
	since := max(*node.Rounds-from-1, 0)
	return &since
}
