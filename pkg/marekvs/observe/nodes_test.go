// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package observe

import (
	"maps"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/utils/ptr"
)

func three(rounds int64) map[int32]Node {
	nodes := map[int32]Node{}
	for ordinal, pod := range []string{"a", "b", "c"} {
		nodes[int32(ordinal)] = Node{Process: process(pod, 0), Members: ptr.To[int64](3), Rounds: ptr.To(rounds), Moved: ptr.To[int64](7)}
	}
	return nodes
}

// Every change of the nodes counts, and whole rounds count from it.
func TestChangesOfNodes(t *testing.T) {
	for name, change := range map[string]func(map[int32]Node){
		"a Pod is deleted":          func(nodes map[int32]Node) { delete(nodes, 2) },
		"a Pod is created":          func(nodes map[int32]Node) { nodes[3] = Node{Process: process("d", 0)} },
		"a Pod is replaced":         func(nodes map[int32]Node) { nodes[1] = Node{Process: process("d", 0)} },
		"a container restarts":      func(nodes map[int32]Node) { nodes[1] = Node{Process: process("b", 1)} },
		"a Pod is being deleted":    func(nodes map[int32]Node) { nodes[2] = Node{Process: process("c", 0), Terminating: true} },
		"a node sees one less":      func(nodes map[int32]Node) { nodes[0] = Node{Process: process("a", 0), Members: ptr.To[int64](2)} },
		"a node sees none any more": func(nodes map[int32]Node) { nodes[0] = Node{Process: process("a", 0), Members: ptr.To[int64](0)} },
	} {
		n := &Nodes{}
		n.Observe(start, three(100))
		n.Observe(start.Add(time.Minute), three(110))
		assert.Equal(t, time.Minute, n.SinceChange(start.Add(time.Minute)), name)
		assert.Equal(t, ptr.To[int64](9), n.Rounds(three(110)[0]), name)

		changed := three(120)
		change(changed)
		now := start.Add(2 * time.Minute)
		n.Observe(now, changed)
		assert.Zero(t, n.SinceChange(now), name)
		if first := changed[0]; first.Rounds != nil {
			assert.Equal(t, ptr.To[int64](0), n.Rounds(first), name)
			later := first
			later.Rounds = ptr.To[int64](122)
			changed = maps.Clone(changed)
			changed[0] = later
			n.Observe(now.Add(time.Minute), changed)
			assert.Equal(t, ptr.To[int64](1), n.Rounds(later), "%s: the second round may not have ended", name)
		}
	}
}

// A node that does not report for a while has not changed.
func TestAMissingReportIsNoChange(t *testing.T) {
	n := &Nodes{}
	n.Observe(start, three(100))
	silent := three(100)
	silent[1] = Node{Process: process("b", 0)}
	n.Observe(start.Add(time.Minute), silent)
	n.Observe(start.Add(2*time.Minute), three(110))
	assert.Equal(t, 2*time.Minute, n.SinceChange(start.Add(2*time.Minute)))
	assert.Nil(t, n.Rounds(silent[1]))
	assert.Equal(t, ptr.To[int64](9), n.Rounds(three(110)[1]))

	silent[1] = Node{Process: process("b", 0), Members: ptr.To[int64](2)}
	n.Observe(start.Add(3*time.Minute), silent)
	assert.Zero(t, n.SinceChange(start.Add(3*time.Minute)), "what it saw before the silence counts")
}

func TestACounterOfRoundsThatFellBeginsAgain(t *testing.T) {
	n := &Nodes{}
	n.Observe(start, three(100))
	n.Observe(start, three(1))
	assert.Equal(t, ptr.To[int64](0), n.Rounds(three(1)[0]))
	assert.Equal(t, ptr.To[int64](1), n.Rounds(three(3)[0]))
}

// While copies move anywhere, no node counts quiet rounds. A node that was silent meanwhile counts too.
func TestQuietRoundsCountFromTheLastMovedCopy(t *testing.T) {
	moved := func(rounds, by int64) map[int32]Node {
		nodes := three(rounds)
		nodes[1] = Node{Process: process("b", 0), Members: ptr.To[int64](3), Rounds: ptr.To(rounds), Moved: ptr.To(by)}
		return nodes
	}
	n := &Nodes{}
	n.Observe(start, moved(100, 7))
	n.Observe(start, moved(104, 7))
	assert.Equal(t, ptr.To[int64](3), n.QuietRounds(three(104)[0]))
	n.Observe(start, moved(108, 8))
	assert.Equal(t, ptr.To[int64](0), n.QuietRounds(three(108)[0]), "node 1 got a record")
	assert.Equal(t, ptr.To[int64](0), n.QuietRounds(moved(108, 8)[1]))
	n.Observe(start, moved(112, 8))
	assert.Equal(t, ptr.To[int64](3), n.QuietRounds(three(112)[0]))

	silent := three(116)
	silent[1] = Node{Process: process("b", 0)}
	n.Observe(start, silent)
	n.Observe(start, moved(120, 9))
	assert.Equal(t, ptr.To[int64](0), n.QuietRounds(three(120)[0]), "node 1 got a record while it was silent")
	assert.Equal(t, ptr.To[int64](19), n.Rounds(three(120)[0]))
	assert.Equal(t, start, n.changed, "a copy that moves is no change of the nodes")
}

func TestQuietRoundsWithoutTheCounterOfRepairsAreNotKnown(t *testing.T) {
	n := &Nodes{}
	for _, rounds := range []int64{100, 110} {
		nodes := three(rounds)
		nodes[0] = Node{Process: process("a", 0), Rounds: ptr.To(rounds)}
		n.Observe(start, nodes)
		assert.Nil(t, n.QuietRounds(nodes[0]))
	}
}
