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
		nodes[int32(ordinal)] = Node{Process: process(pod, 0), Members: ptr.To[int64](3), Rounds: ptr.To(rounds)}
	}
	return nodes
}

// Every change of the nodes counts, and rounds count from it.
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
		assert.Equal(t, ptr.To[int64](10), n.Rounds(three(110)[0]), name)

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
			assert.Equal(t, ptr.To[int64](2), n.Rounds(later), name)
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
	assert.Equal(t, ptr.To[int64](10), n.Rounds(three(110)[1]))

	silent[1] = Node{Process: process("b", 0), Members: ptr.To[int64](2)}
	n.Observe(start.Add(3*time.Minute), silent)
	assert.Zero(t, n.SinceChange(start.Add(3*time.Minute)), "what it saw before the silence counts")
}

func TestACounterOfRoundsThatFellBeginsAgain(t *testing.T) {
	n := &Nodes{}
	n.Observe(start, three(100))
	n.Observe(start, three(1))
	assert.Equal(t, ptr.To[int64](0), n.Rounds(three(1)[0]))
	assert.Equal(t, ptr.To[int64](1), n.Rounds(three(2)[0]))
}
