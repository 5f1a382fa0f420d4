// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storetest

import "slices"

// chunkBytes is the size of a partition that is sent in one step.
const chunkBytes = 1 << 20

// BeginRound begins a round of a node. The counter rises first; then the node compares each
// partition that it owns with one other owner, which it chooses at random. What differs is
// copied afterwards, however long that takes (marekvs-repl/src/lib.rs:1446-1484).
func (d *Data) BeginRound(n *Node, active []*Node) {
	n.Rounds++
	if !slices.Contains(active, n) {
		return
	}
	stranded := n.Rounds%strandedRounds == 0
	for p, owners := range d.ownersOn(active) {
		owns := slices.Contains(owners, n.Ordinal)
		others := slices.DeleteFunc(slices.Clone(owners), func(ordinal int32) bool { return ordinal == n.Ordinal })
		if len(others) == 0 || !owns && (!stranded || n.volume.copies[p] == 0) {
			continue
		}
		other := find(active, others[d.random.IntN(len(others))])
		d.compare(p, n, other)
		// A node that does not own the partition gets nothing that it does not hold
		// (marekvs-repl/src/lib.rs:1748-1758).
		if owns {
			d.compare(p, other, n)
		}
	}
}

// compare begins to copy a partition if a node has something that another node does not have.
func (d *Data) compare(partition int, from, to *Node) {
	if from.volume.copies[partition]&^to.volume.copies[partition] != 0 {
		d.transfer(partition, from, to, false)
	}
}

func (d *Data) transfer(partition int, from, to *Node, bootstrap bool) {
	for _, t := range d.copying {
		if t.partition == partition && t.from == from && t.to == to {
			return
		}
	}
	steps := max(d.CopySteps, 1)
	if from.volume.copies[partition] == 0 {
		steps = 1
	}
	d.copying = append(d.copying, &transfer{partition: partition, from: from, to: to, bootstrap: bootstrap, left: steps})
}

// bootstrap requests the partitions that a node will own, and that are empty, from their first
// owner. A returning member requests none (marekvs-repl/src/lib.rs:939).
func (d *Data) bootstrap(n *Node, active []*Node) {
	if n.returning {
		return
	}
	for p, present := range d.ownersOn(active) {
		if n.volume.copies[p] != 0 || n.bootstrapped[p] || !slices.Contains(owners(d.ownersOf|1<<n.Ordinal, p, d.Factor), n.Ordinal) {
			continue
		}
		for _, source := range present {
			if source != n.Ordinal {
				d.transfer(p, find(active, source), n, true)
				break
			}
		}
	}
}

// Step moves copies for one step between the nodes of running, which are started. A node becomes
// active when it has bootstrapped (marekvs-repl/src/lib.rs:986).
func (d *Data) Step(running []*Node) {
	active := slices.DeleteFunc(slices.Clone(running), func(n *Node) bool { return !n.active })
	for _, n := range running {
		d.bootstrap(n, active)
	}
	busy := map[*Node]bool{}
	d.copying = slices.DeleteFunc(d.copying, func(t *transfer) bool {
		if !slices.Contains(running, t.from) || !slices.Contains(running, t.to) {
			return true // the connection is closed; a later round begins again
		}
		if busy[t.to] {
			return false
		}
		busy[t.to] = true
		t.left--
		if t.bootstrap {
			t.from.BootstrapBytes += chunkBytes
		} else {
			t.to.Repaired++ // counted where it arrives (marekvs-repl/src/lib.rs:1846)
		}
		if t.left > 0 {
			return false
		}
		t.to.volume.copies[t.partition] |= t.from.volume.copies[t.partition]
		if t.bootstrap {
			t.to.bootstrapped[t.partition] = true
			t.to.Bootstraps++
		}
		return true
	})
	for _, n := range running {
		if !n.active && d.joining(n) == 0 {
			n.activate()
		}
	}
}

// joining returns how many partitions a node still bootstraps.
func (d *Data) joining(n *Node) (pending int64) {
	for _, t := range d.copying {
		if t.to == n && t.bootstrap {
			pending++
		}
	}
	return pending
}

func find(nodes []*Node, ordinal int32) *Node {
	return nodes[slices.IndexFunc(nodes, func(n *Node) bool { return n.Ordinal == ordinal })]
}
