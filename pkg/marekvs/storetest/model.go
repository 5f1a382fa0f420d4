// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package storetest models the store marekvs: its nodes, their volumes, the partitions on each
// volume, how copies move between nodes, and how nodes find each other. Model runs a cluster in
// simulated time; e2e/marekvsstore runs the same nodes for Pods of a real API server.
//
// The store is proprietary. The model has facts about its behaviour and nothing of its source;
// each fact names where it was read, as path and line in github.com/yannick/marekvs at commit
// defc648, below crates/.
package storetest

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/marekvs/scale"
)

// Model is a cluster with a StatefulSet controller.
type Model struct {
	*rand.Rand

	// Idle is true if no client writes.
	Idle bool

	// Second is the simulated time. Rate is the number of commands per second of all nodes.
	Second int
	Rate   float64
	// Pods and Volumes are the existing Pods and volumes.
	Pods    []*Node
	Volumes *Data
	// Replicas and Generation belong to the spec of the StatefulSet. Observed is the
	// generation that its controller has observed.
	Replicas             int32
	Generation, Observed int
	// Update is the part of the spec and the status that is about updates of the Pods.
	Update Update
	// DeletedVolumes counts the volumes of each node that were deleted: a new volume is another one.
	DeletedVolumes map[int32]int
	// Problems describes lost data and forbidden changes.
	Problems []string
	// MostTerminating is the maximum number of Pods that were being deleted at the same
	// time.
	MostTerminating int

	created int
	// lost has the ordinals whose volumes are lost: their Pods do not start. doomed has those whose
	// claims are being deleted, which lasts until their Pods have ended.
	lost, doomed map[int32]bool
	// draining is the number of seconds for which a Kubernetes Node is drained.
	draining int
}

// New returns a cluster whose nodes are ready and have every copy, with Copies copies of each
// partition. A partition takes a second to copy.
func New(random *rand.Rand, size int32) *Model { return NewFactor(random, size, Copies) }

// NewFactor returns a cluster as New does, with another number of copies.
func NewFactor(random *rand.Rand, size int32, factor int) *Model {
	m := &Model{Rand: random, Volumes: NewData(random, factor), Replicas: size, Rate: 10_000, Update: newUpdate(size),
		DeletedVolumes: map[int32]int{}, lost: map[int32]bool{}, doomed: map[int32]bool{}}
	for ordinal := range size {
		m.create(ordinal).readyIn = 0
	}
	m.Volumes.Fill(m.Pods)
	return m
}

func (m *Model) create(ordinal int32) *Node {
	m.created++
	n := &Node{UID: m.created, Ordinal: ordinal, Factor: m.Volumes.Factor, readyIn: 2 + m.IntN(5), fresh: 2, roundIn: 5 + m.IntN(3)}
	n.Revision = m.Update.revisionOf(ordinal)
	m.Pods = append(m.Pods, n)
	if n.stuck = m.lost[ordinal]; !n.stuck {
		m.Volumes.Open(n)
	}
	return n
}

// Now returns the time of the model.
func (m *Model) Now() time.Time { return time.Unix(int64(m.Second), 0) }

// Online returns the nodes that are ready and not being deleted.
func (m *Model) Online() []*Node { return m.filter((*Node).online) }

func (m *Model) filter(keep func(*Node) bool) []*Node {
	nodes := make([]*Node, 0, len(m.Pods))
	for _, n := range m.Pods {
		if keep(n) {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// writeEvery is how many seconds pass between two writes of clients.
const writeEvery = 5

// Tick lets a second pass.
func (m *Model) Tick() {
	m.Second++
	if m.IntN(3) == 0 {
		m.runStatefulSetController()
	}
	if m.draining > 0 {
		m.draining--
		m.Evict()
	}
	if online := m.Online(); !m.Idle && m.Second%writeEvery == 0 {
		m.Volumes.Write(m.IntN(Partitions), online)
	}
	running := m.filter((*Node).started)
	m.Volumes.Step(running)
	online := m.Online()
	for _, n := range running {
		if n.active {
			n.Commands += m.Rate / float64(len(online))
		}
		n.fresh = max(n.fresh-1, 0)
		if n.roundIn--; n.roundIn <= 0 {
			m.Volumes.BeginRound(n, online)
			n.roundIn = 5 + m.IntN(3) // marekvs-repl/src/lib.rs:1450
		}
	}
	for _, n := range m.Pods {
		if !n.stuck {
			n.readyIn = max(n.readyIn-1, 0)
		}
		n.Silent = max(n.Silent-1, 0)
		n.endsIn = max(n.endsIn-1, 0)
	}
	m.Pods = slices.DeleteFunc(m.Pods, func(n *Node) bool { return n.Terminating && n.endsIn == 0 })
	m.deleteDoomed()
	m.checkCopies()
}

func (m *Model) runStatefulSetController() {
	m.Observed, m.Update.UpdateRevision = m.Generation, m.Update.Template
	for _, n := range m.Pods {
		if n.Ordinal >= m.Replicas {
			m.terminate(n)
		}
	}
	for ordinal := range m.Replicas {
		if !m.exists(ordinal) {
			m.create(ordinal)
		}
	}
	m.updatePods()
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

// checkCopies expects each write on a volume of the present size. The volumes of removed nodes are
// out of reach, or deleted.
func (m *Model) checkCopies() {
	for _, p := range m.Volumes.Lost(m.Replicas) {
		m.Problems = append(m.Problems, "no copy of partition "+strconv.Itoa(p)+" at "+strconv.Itoa(m.Second))
	}
}

// Evict deletes a Pod if the PodDisruptionBudget allows it. Its volume stays: the budget allows nothing while the claim of
// a node is being deleted.
func (m *Model) Evict() {
	if len(m.Online()) == int(m.Replicas) && len(m.Pods) == int(m.Replicas) && len(m.doomed) == 0 {
		m.terminate(m.Pods[m.IntN(len(m.Pods))])
	}
}

// Drain deletes the Pods of a Kubernetes Node that is drained, one after another, each as soon as the
// PodDisruptionBudget allows it. It ends after some seconds.
func (m *Model) Drain(seconds int) { m.draining = seconds }

// DeletePod deletes a Pod whatever the PodDisruptionBudget. Its volume stays.
func (m *Model) DeletePod(n *Node) { m.terminate(n) }

// DeleteVolume deletes a volume, which must not belong to a node.
func (m *Model) DeleteVolume(ordinal int32) {
	if ordinal < m.Replicas {
		m.Problems = append(m.Problems, "the volume of node "+strconv.Itoa(int(ordinal))+" is deleted at "+strconv.Itoa(m.Second))
	}
	delete(m.lost, ordinal)
	m.Volumes.Delete(ordinal)
	m.DeletedVolumes[ordinal]++
}

// Resize changes the size of the StatefulSet. At most one node is removed at a time.
func (m *Model) Resize(replicas int32) {
	if replicas < m.Replicas-1 {
		m.Problems = append(m.Problems, strconv.Itoa(int(m.Replicas-replicas))+" nodes are removed at "+strconv.Itoa(m.Second))
	}
	m.Replicas = replicas
	m.Generation++
}

// Sample returns the report of a node, nil if it does not report. A node that has just started
// reports 0 members (marekvs-repl/src/lib.rs:736 sets the gauges every 2 s).
func (m *Model) Sample(n *Node) *scale.Sample {
	if n.readyIn > 0 || n.Silent > 0 {
		return nil
	}
	if n.fresh > 0 {
		return &scale.Sample{Underreplicated: ptr.To[int64](0), Members: ptr.To[int64](0)}
	}
	r := m.Volumes.Report(n, len(m.filter((*Node).started)), len(m.Online()))
	return &scale.Sample{
		Underreplicated: &r.Underreplicated, Members: &r.Members, EffectiveReplicas: &r.EffectiveReplicas, Joining: &r.Joining,
	}
}
