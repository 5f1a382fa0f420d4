// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storetest

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// newNodes returns the volumes of a cluster with two copies, and its nodes, which are active and have
// every copy.
func newNodes(size int32) (*Data, []*Node) {
	const factor = 2
	d := NewData(rand.New(rand.NewPCG(1, 1)), factor)
	var nodes []*Node
	for ordinal := range size {
		n := &Node{Ordinal: ordinal, Factor: factor}
		d.Open(n)
		nodes = append(nodes, n)
	}
	d.Fill(nodes)
	return d, nodes
}

// repair lets all nodes begin rounds, and moves what differs.
func repair(d *Data, nodes []*Node) {
	for range 200 {
		for _, n := range nodes {
			d.BeginRound(n, nodes)
		}
		d.Step(nodes)
	}
}

// A round counts when it begins, and what differs is copied afterwards. Only the counter of repairs shows that.
func TestARoundCountsBeforeItsCopiesMove(t *testing.T) {
	const steps = 10
	d, nodes := newNodes(2)
	d.CopySteps = steps
	behind := nodes[1]
	behind.volume.copies[3] = 0
	d.BeginRound(behind, nodes)
	assert.Equal(t, int64(1), behind.Rounds)
	assert.Zero(t, behind.Moved())
	for step := range int64(steps) {
		assert.Equal(t, 1, d.Fewest(nodes), "copies after %d steps", step)
		d.Step(nodes)
		assert.Equal(t, step+1, behind.Moved())
	}
	assert.Equal(t, 2, d.Fewest(nodes))
}

// A node with an empty volume joins when it has its partitions. A node that comes back with its volume has joined at once,
// and only rounds bring it the partitions that it owns since.
func TestANodeThatComesBackBootstrapsNothing(t *testing.T) {
	for name, returns := range map[string]bool{"an empty volume": false, "a volume that was in use": true} {
		d, nodes := newNodes(3)
		d.CopySteps = 5
		d.volumes[3] = &Volume{active: returns}
		joining := &Node{Ordinal: 3, Factor: 2}
		d.Open(joining)
		all := append(slices.Clone(nodes), joining)
		owned := func() (complete, owned int) {
			for p, owners := range d.ownersOn(all) {
				if slices.Contains(owners, joining.Ordinal) {
					owned++
					if joining.volume.copies[p] == d.written[p] {
						complete++
					}
				}
			}
			return complete, owned
		}
		d.Step(all)
		complete, expected := owned()
		require.Positive(t, expected, name)
		assert.Zero(t, complete, name)
		assert.Equal(t, returns, joining.Active(), name)
		assert.Equal(t, returns, d.Report(joining, 4, 3).Joining == 0, name)
		for range 200 {
			d.Step(all)
		}
		complete, _ = owned()
		assert.True(t, joining.Active(), name)
		if returns {
			assert.Zero(t, complete, name)
		} else {
			assert.Equal(t, expected, complete, name)
			assert.Positive(t, joining.Bootstraps, name)
		}
		repair(d, all)
		complete, _ = owned()
		assert.Equal(t, expected, complete, name)
	}
}

// The gauges count nodes, up to the factor of the node that reports. They show nothing about the data.
func TestTheGaugesCountNodes(t *testing.T) {
	d, nodes := newNodes(3)
	for _, n := range nodes {
		n.volume.copies = [Partitions]chunks{}
	}
	require.Zero(t, d.Fewest(nodes))
	report := d.Report(nodes[0], 3, 3)
	assert.Zero(t, report.Underreplicated)
	assert.Equal(t, int64(2), report.EffectiveReplicas)
	assert.Equal(t, int64(3), d.Report(&Node{Ordinal: 0, Factor: 3}, 3, 3).EffectiveReplicas, "its own factor")
	assert.Equal(t, int64(allPartitions), d.Report(nodes[0], 3, 1).Underreplicated)
}

// A node keeps the partitions that it no longer owns: volumes do not get emptier when nodes are added.
func TestNothingIsPurged(t *testing.T) {
	d, nodes := newNodes(3)
	var before [3][Partitions]chunks
	owned := 0
	for i, n := range nodes {
		before[i] = n.volume.copies
	}
	added := &Node{Ordinal: 3, Factor: 2}
	d.Open(added)
	all := append(slices.Clone(nodes), added)
	d.Step(all)
	repair(d, all)
	for i, n := range nodes {
		for p, owners := range d.ownersOn(all) {
			assert.Equal(t, before[i][p], before[i][p]&n.volume.copies[p], "partition %d of node %d", p, i)
			if before[i][p] != 0 && !slices.Contains(owners, n.Ordinal) {
				owned++
			}
		}
	}
	assert.Positive(t, owned, "partitions that nodes no longer own")
}

// Clients choose the names of commands: each that was ever sent is in the metrics.
func TestEveryCommandNameIsALabel(t *testing.T) {
	var page bytes.Buffer
	(&Report{}).Write(&page, map[string]int64{"no-command": 3})
	assert.Contains(t, page.String(), "marekvs_commands_total{cmd=\"no-command\"} 3\n")
	assert.Contains(t, page.String(), "marekvs_command_duration_seconds_bucket{cmd=\"no-command\"")
}

// shrinkByGauges removes nodes as an operator does that trusts gauges and counts rounds that have begun: every Pod is ready
// and sees all nodes, no partition has too few owners, no node joins, and each has begun two rounds since the last change,
// which was 30 seconds ago.
func shrinkByGauges(m *Model, to int32) {
	changed, rounds := m.Second, map[int]int64{}
	remember := func() {
		changed = m.Second
		for _, n := range m.Pods {
			rounds[n.UID] = n.Rounds
		}
	}
	allowed := func() bool {
		if m.Second-changed < 30 || len(m.Online()) != int(m.Replicas) || len(m.Pods) != int(m.Replicas) {
			return false
		}
		return !slices.ContainsFunc(m.Pods, func(n *Node) bool {
			s := m.Sample(n)
			return s == nil || *s.Members != int64(m.Replicas) || *s.Underreplicated > 0 || *s.Joining > 0 || n.Rounds < rounds[n.UID]+2
		})
	}
	remember()
	for range 1800 {
		m.Tick()
		if m.Replicas > to && allowed() {
			m.Resize(m.Replicas - 1)
			remember()
		}
	}
}

// The model is not kinder than the store: gauges and rounds that have begun do not keep data if copies take long, nor is
// any node without data that no other node has if there is one copy of it.
func TestARemovalByGaugesLosesData(t *testing.T) {
	losses := func(steps, factor int) (losses int) {
		for seed := range uint64(5) {
			m := NewFactor(rand.New(rand.NewPCG(seed, 5)), 6, factor)
			m.Volumes.CopySteps = steps
			for _, n := range slices.Clone(m.Pods) { // all nodes come back with their volumes
				m.DeletePod(n)
			}
			for range 120 {
				m.Tick()
			}
			require.Len(t, m.Online(), 6)
			require.Empty(t, m.Problems)
			shrinkByGauges(m, 3)
			require.Equal(t, int32(3), m.Replicas)
			if len(m.Problems) > 0 {
				losses++
			}
		}
		return losses
	}
	assert.Positive(t, losses(72, 2), "clusters that lose data while copies are slow")
	assert.Equal(t, 5, losses(1, 1), "clusters that lose data with one copy of it")
}
