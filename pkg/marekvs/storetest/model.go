// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package storetest models a cluster of marekvs: Pods, volumes, and which of them have a copy
// of each partition.
package storetest

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"time"
)

// Model is a cluster with a StatefulSet controller and with nodes that place their data as
// the store does: by rendezvous hashing over the nodes that they see. A node knows that the
// owners of a partition have changed at the beginning of its next round.
type Model struct {
	*rand.Rand

	// ReportsRounds is true if the nodes report how often they have compared their copies.
	// The operator waits for that, or else for a time.
	ReportsRounds bool

	// Second is the time, Rate the number of commands per second of all nodes.
	Second int
	Rate   float64
	// Pods and Volumes are those that exist.
	Pods    []*Node
	Volumes Data
	// Replicas and Generation are the spec of the StatefulSet, Observed what its controller
	// has observed.
	Replicas             int32
	Generation, Observed int
	// Problems are losses of data.
	Problems []string
	// MostTerminating is how many Pods were being deleted at the same time.
	MostTerminating int

	created int
}

// New returns a cluster of nodes that are ready and have every copy.
func New(random *rand.Rand, size int32) *Model {
	m := &Model{Rand: random, ReportsRounds: random.IntN(2) == 0, Volumes: Data{}, Replicas: size, Rate: 10_000}
	for ordinal := range size {
		m.create(ordinal).readyIn = 0
	}
	m.Volumes.Fill(m.Pods)
	return m
}

func (m *Model) create(ordinal int32) *Node {
	m.created++
	n := &Node{UID: m.created, Ordinal: ordinal, readyIn: 2 + m.IntN(5), fresh: 2, roundIn: 5 + m.IntN(3)}
	m.Pods = append(m.Pods, n)
	m.Volumes.create(ordinal)
	return n
}

// Now returns the time of the model.
func (m *Model) Now() time.Time { return time.Unix(int64(m.Second), 0) }

// Online returns the nodes that are ready and not being deleted.
func (m *Model) Online() []*Node {
	online := make([]*Node, 0, len(m.Pods))
	for _, n := range m.Pods {
		if n.online() {
			online = append(online, n)
		}
	}
	return online
}

// Tick lets a second pass.
func (m *Model) Tick() {
	m.Second++
	if m.IntN(3) == 0 {
		m.runStatefulSetController()
	}
	online := m.Online()
	for _, n := range online {
		n.Commands += m.Rate / float64(len(online))
		n.fresh = max(n.fresh-1, 0)
		if n.roundIn--; n.roundIn <= 0 {
			m.Volumes.FinishRound(n, m.Online())
			n.roundIn = 5 + m.IntN(3)
		}
	}
	for _, n := range m.Pods {
		n.readyIn = max(n.readyIn-1, 0)
		n.Silent = max(n.Silent-1, 0)
		n.endsIn = max(n.endsIn-1, 0)
	}
	m.Pods = slices.DeleteFunc(m.Pods, func(n *Node) bool { return n.Terminating && n.endsIn == 0 })
	m.checkCopies()
}

func (m *Model) runStatefulSetController() {
	m.Observed = m.Generation
	for _, n := range m.Pods {
		if n.Ordinal >= m.Replicas {
			m.terminate(n)
		}
	}
	for ordinal := range m.Replicas {
		if !slices.ContainsFunc(m.Pods, func(n *Node) bool { return n.Ordinal == ordinal }) {
			m.create(ordinal)
		}
	}
}

func (m *Model) terminate(n *Node) {
	if !n.Terminating {
		n.Terminating, n.endsIn = true, 2+m.IntN(8)
	}
	terminating := 0
	for _, other := range m.Pods {
		if other.Terminating {
			terminating++
		}
	}
	m.MostTerminating = max(m.MostTerminating, terminating)
}

// checkCopies expects a copy of each partition on a volume of the cluster. A volume of a
// removed node does not count: it is not updated any more.
func (m *Model) checkCopies() {
	var copied [Partitions]bool
	for ordinal, v := range m.Volumes {
		if ordinal >= m.Replicas {
			*v = Volume{}
		}
		for p, has := range v.copies {
			copied[p] = copied[p] || has
		}
	}
	for p, has := range copied {
		if !has {
			m.Problems = append(m.Problems, "no copy of partition "+strconv.Itoa(p)+" at "+strconv.Itoa(m.Second))
		}
	}
}

// Evict deletes a Pod, if the budget of one unavailable Pod allows it. Its volume stays.
func (m *Model) Evict() {
	if len(m.Online()) == int(m.Replicas) && len(m.Pods) == int(m.Replicas) {
		m.terminate(m.Pods[m.IntN(len(m.Pods))])
	}
}

// DeleteVolume deletes a volume, which must not be that of a node.
func (m *Model) DeleteVolume(ordinal int32) {
	if ordinal < m.Replicas {
		m.Problems = append(m.Problems, "the volume of node "+strconv.Itoa(int(ordinal))+" is deleted at "+strconv.Itoa(m.Second))
	}
	delete(m.Volumes, ordinal)
}

// Resize changes the size of the StatefulSet. At most one node is removed at a time.
func (m *Model) Resize(replicas int32) {
	if replicas < m.Replicas-1 {
		m.Problems = append(m.Problems, strconv.Itoa(int(m.Replicas-replicas))+" nodes are removed at "+strconv.Itoa(m.Second))
	}
	m.Replicas = replicas
	m.Generation++
}
