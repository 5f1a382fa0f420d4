// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package storetest models a cluster of marekvs: its Pods, its volumes, and the partitions
// on each volume. Model runs in simulated time. e2e/marekvsstore uses Data and Node for
// Pods of a real API server.
package storetest

import (
	"cmp"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/marekvs/scale"
)

// Model is a cluster with a StatefulSet controller. Its nodes place data as the store does:
// by rendezvous hashing over the nodes that they see. A node learns new owners of a
// partition when its next round begins.
type Model struct {
	*rand.Rand

	// ReportsRounds is true if the nodes report their rounds. The operator waits for
	// rounds, or else for a fixed time.
	ReportsRounds bool

	// Second is the simulated time. Rate is the number of commands per second of all nodes.
	Second int
	Rate   float64
	// Pods and Volumes are the existing Pods and volumes.
	Pods    []*Node
	Volumes Data
	// Replicas and Generation belong to the spec of the StatefulSet. Observed is the
	// generation that its controller has observed.
	Replicas             int32
	Generation, Observed int
	// Problems describes lost data and forbidden changes.
	Problems []string
	// MostTerminating is the maximum number of Pods that were being deleted at the same
	// time.
	MostTerminating int

	created int
}

// New returns a cluster whose nodes are ready and have every copy.
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

// checkCopies expects a copy of each partition on the volume of a node. Volumes of removed
// nodes do not count: they are stale.
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

// Evict deletes a Pod if the PodDisruptionBudget allows it. Its volume stays.
func (m *Model) Evict() {
	if len(m.Online()) == int(m.Replicas) && len(m.Pods) == int(m.Replicas) {
		m.terminate(m.Pods[m.IntN(len(m.Pods))])
	}
}

// DeleteVolume deletes a volume, which must not belong to a node.
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

// Node is a Pod of the model.
type Node struct {
	UID         int
	Ordinal     int32
	Terminating bool
	// Silent is the number of seconds for which the node will not report metrics.
	Silent int
	// Commands is the number of executed commands. Rounds is how many times the node has
	// compared its copies.
	Commands float64
	Rounds   int64

	// readyIn, endsIn and fresh are the seconds until the node is ready, until it is
	// deleted, and until it first refreshes its metrics.
	readyIn, endsIn, fresh int
	// owned has the partitions that the node owned when the present round began.
	owned   [Partitions]bool
	roundIn int
}

// Ready reports whether the node has started.
func (n *Node) Ready() bool { return n.readyIn == 0 }

func (n *Node) online() bool { return n.Ready() && !n.Terminating }

// Sample returns the report of a node, nil if it does not report. As in the store,
// partitions have too few owners only while a node sees fewer than Copies nodes.
func (m *Model) Sample(n *Node) *scale.Sample {
	switch online := int64(len(m.Online())); {
	case !n.Ready() || n.Silent > 0:
		return nil
	case n.fresh > 0:
		return &scale.Sample{Underreplicated: ptr.To[int64](0), Members: ptr.To[int64](0)}
	case online < Copies:
		return &scale.Sample{Underreplicated: ptr.To[int64](4096), Members: &online, EffectiveReplicas: ptr.To[int64](1)}
	default:
		return &scale.Sample{Underreplicated: ptr.To[int64](0), Members: &online, EffectiveReplicas: ptr.To[int64](Copies)}
	}
}

const (
	// Partitions is the number of partitions of the data.
	Partitions = 16
	// Copies is the number of copies of each partition.
	Copies = 2
)

// Volume has the copies of a node. It outlives the node.
type Volume struct{ copies [Partitions]bool }

// Data has the volumes of a cluster, by the ordinals of their nodes.
type Data map[int32]*Volume

func (d Data) create(ordinal int32) {
	if d[ordinal] == nil {
		d[ordinal] = &Volume{}
	}
}

// weights order the nodes for each partition.
var weights = func() (all [Partitions][32]uint32) {
	for p := range all {
		for ordinal := range all[p] {
			h := fnv.New32a()
			_, _ = h.Write([]byte(strconv.Itoa(p) + "/" + strconv.Itoa(ordinal*7919)))
			all[p][ordinal] = h.Sum32()
		}
	}
	return all
}()

// owners returns the nodes that own a partition.
func owners(online []*Node, partition int) []*Node {
	owners := make([]*Node, 0, Copies+1)
	for _, n := range online {
		at, _ := slices.BinarySearchFunc(owners, n, func(a, b *Node) int {
			return cmp.Compare(weights[partition][b.Ordinal], weights[partition][a.Ordinal])
		})
		owners = slices.Insert(owners, at, n)
		owners = owners[:min(Copies, len(owners))]
	}
	return owners
}

// Fill stores every partition on its owners.
func (d Data) Fill(online []*Node) {
	for p := range Partitions {
		for _, owner := range owners(online, p) {
			d.create(owner.Ordinal)
			d[owner.Ordinal].copies[p] = true
		}
	}
}

// has reports whether a node has a partition.
func (d Data) has(nodes []*Node, partition int) bool {
	return slices.ContainsFunc(nodes, func(n *Node) bool { return d[n.Ordinal].copies[partition] })
}

// Fewest returns the lowest number of copies of a partition on the nodes.
func (d Data) Fewest(nodes []*Node) int {
	fewest := len(nodes)
	for p := range Partitions {
		copies := 0
		for _, n := range nodes {
			if d[n.Ordinal] != nil && d[n.Ordinal].copies[p] {
				copies++
			}
		}
		fewest = min(fewest, copies)
	}
	return fewest
}

// FinishRound copies the partitions that the node owned when the round began, drops
// partitions that the node does not own and all owners have, and begins the next round.
func (d Data) FinishRound(n *Node, online []*Node) {
	for _, other := range online {
		d.create(other.Ordinal)
	}
	own := d[n.Ordinal]
	for p := range Partitions {
		if n.owned[p] && !own.copies[p] {
			own.copies[p] = d.has(online, p)
		}
		owners := owners(online, p)
		n.owned[p] = slices.Contains(owners, n)
		if own.copies[p] && !n.owned[p] && len(owners) == Copies &&
			d[owners[0].Ordinal].copies[p] && d[owners[1].Ordinal].copies[p] {
			own.copies[p] = false
		}
	}
	n.Rounds++
}
