// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/utils/ptr"
)

// healthy returns a cluster whose copies are complete.
func healthy(nodes int32) *Observation {
	o := &Observation{
		Name: "demo", ReplicationFactor: 2, Replicas: nodes, StatusReplicas: nodes, Current: true,
		TemplateCurrent: true, CurrentRevision: "1", UpdateRevision: "1",
		SinceChange: time.Minute, Settle: 30 * time.Second, SinceRemoval: time.Hour,
	}
	for ordinal := range nodes {
		o.Pods = append(o.Pods, Pod{
			Ordinal: ordinal, Ready: true, Revision: "1", Rounds: ptr.To[int64](3), QuietRounds: ptr.To[int64](3),
			Sample: &Sample{
				Underreplicated: ptr.To[int64](0), Members: ptr.To(int64(nodes)), EffectiveReplicas: ptr.To[int64](2), Joining: ptr.To[int64](0),
				DiskTotal: ptr.To(100.0), DiskAvailable: ptr.To(90.0), WriteStopped: ptr.To[int64](0),
			},
		})
	}
	return o
}

// obstacles lists what blocks a removal, with the expected reason.
var obstacles = []struct {
	name, reason string
	put          func(*Observation)
}{
	{"one Pod has no metrics", "MetricsUnavailable", func(o *Observation) { o.Pods[0].Sample = nil }},
	{"a Pod does not report partitions", "MetricsUnavailable", func(o *Observation) { o.Pods[5].Sample.Underreplicated = nil }},
	{"a Pod has just started", "MetricsUnavailable", func(o *Observation) { o.Pods[1].Sample.Members = ptr.To[int64](0) }},
	{"a Pod is missing", "MetricsUnavailable", func(o *Observation) { o.Pods = slices.Delete(o.Pods, 2, 3) }},
	{"partitions have too few owners", "Underreplicated", func(o *Observation) { o.Pods[4].Sample.Underreplicated = ptr.To[int64](1) }},
	{"each partition has one copy", "SingleCopy", func(o *Observation) { o.ReplicationFactor = 1 }},
	{"a Pod is not ready", "NotAllReady", func(o *Observation) { o.Pods[3].Ready = false }},
	{"the last removal is not over", "PodTerminating", func(o *Observation) {
		o.Pods = append(o.Pods, Pod{Ordinal: 6, Ready: true, Terminating: true})
	}},
	{"the last removal has not begun", "NotObserved", func(o *Observation) { o.Pods = append(o.Pods, Pod{Ordinal: 6, Ready: true}) }},
	{"the size was not observed", "NotObserved", func(o *Observation) { o.Current = false }},
	{"the StatefulSet has another number of Pods", "NotObserved", func(o *Observation) { o.StatusReplicas = 7 }},
	{"a node sees fewer nodes", "MembersDiffer", func(o *Observation) { o.Pods[2].Sample.Members = ptr.To[int64](5) }},
	{"a node sees more nodes", "MembersDiffer", func(o *Observation) { o.Pods[2].Sample.Members = ptr.To[int64](7) }},
	{"a partition has too few copies", "MembersDiffer", func(o *Observation) { o.Pods[2].Sample.EffectiveReplicas = ptr.To[int64](1) }},
	{"a node is joining", "Repairing", func(o *Observation) { o.Pods[2].Sample.Joining = ptr.To[int64](1) }},
	{"a node has compared its copies twice", "Repairing", func(o *Observation) { o.Pods[2].Rounds = ptr.To[int64](2) }},
	{"a node does not report repairs", "MetricsUnavailable", func(o *Observation) { o.Pods[2].QuietRounds = nil }},
	{"copies have moved", "Repairing", func(o *Observation) { o.Pods[2].QuietRounds = ptr.To[int64](2) }},
	{"each partition has more owners to compare with", "Repairing", func(o *Observation) {
		o.ReplicationFactor = 3
		for i := range o.Pods {
			o.Pods[i].Sample.EffectiveReplicas = ptr.To[int64](3)
		}
	}},
	{"the nodes changed just now", "Settling", func(o *Observation) { o.SinceChange = 29 * time.Second }},
	{"a node has stopped to write", "DiskFull", func(o *Observation) { o.Pods[1].Sample.WriteStopped = ptr.To[int64](1) }},
	{"a volume would be too full", "DiskFull", func(o *Observation) {
		o.Pods[0].Sample.DiskAvailable, o.Pods[5].Sample.DiskAvailable = ptr.To(29.0), ptr.To(40.0)
	}},
	{"a node keeps fewer copies", "RollingOut", func(o *Observation) { o.Pods[3].Factor = 1 }},
	{"Pods are being updated", "RollingOut", func(o *Observation) { o.UpdateRevision, o.Pods[5].Revision = "2", "2" }},
}

// A removal happens only without any obstacle.
func TestEachObstacleBlocksARemoval(t *testing.T) {
	o := healthy(6)
	assert.Equal(t, Step{Replicas: 5}, Next(3, o, Removal{DiskPercent: 80}))
	for _, obstacle := range obstacles {
		o := healthy(6)
		obstacle.put(o)
		step := Next(3, o, Removal{DiskPercent: 80})
		assert.Equal(t, int32(6), step.Replicas, obstacle.name)
		if assert.NotNil(t, step.Blocked, obstacle.name) {
			assert.Equal(t, obstacle.reason, step.Blocked.Reason, "%s: %s", obstacle.name, step.Blocked.Message)
			assert.NotEmpty(t, step.Blocked.Message)
		}
		assert.Equal(t, Step{Replicas: 8}, Next(8, o, Removal{}), "%s: nodes are added all the same", obstacle.name)
		assert.Equal(t, Step{Replicas: 6}, Next(6, o, Removal{}), "%s: the size is reached", obstacle.name)
	}
	assert.Equal(t, "Stabilizing", Next(3, healthy(6), Removal{DiskPercent: 80, Wait: 1}).Blocked.Reason)
}

// The reasons that users know come first, in their order.
func TestTheFirstReasonIsReported(t *testing.T) {
	o := healthy(6)
	o.Pods[0].Sample, o.Pods[1].Ready = nil, false
	o.Pods[2].Sample.Underreplicated = ptr.To[int64](7)
	assert.Equal(t, &Block{"MetricsUnavailable", "metrics unreachable (5 of 6 pods scraped)"}, Next(3, o, Removal{}).Blocked)
	o.Pods[0].Sample = healthy(6).Pods[0].Sample
	assert.Equal(t, &Block{"Underreplicated", "7 partitions under-replicated"}, Next(3, o, Removal{}).Blocked)
	o.Pods[2].Sample.Underreplicated = ptr.To[int64](0)
	assert.Equal(t, &Block{"NotAllReady", "5 of 6 pods ready"}, Next(3, o, Removal{}).Blocked)
}

// A node of an older version does not report everything.
func TestMissingOptionalMetricsDoNotBlock(t *testing.T) {
	o := healthy(6)
	for i := range o.Pods {
		o.Pods[i].Sample = &Sample{Underreplicated: ptr.To[int64](0)}
	}
	assert.Equal(t, Step{Replicas: 5}, Next(3, o, Removal{}))
	o.SinceChange = 0
	assert.Equal(t, "Settling", Next(3, o, Removal{}).Blocked.Reason, "rounds alone do not suffice")
}

func TestReported(t *testing.T) {
	o := healthy(3)
	o.Pods[1].Sample.Underreplicated = ptr.To[int64](4)
	o.Pods[2].Ready = false
	o.Pods = append(o.Pods, Pod{Ordinal: 3, Ready: true, Terminating: true})
	assert.Equal(t, ptr.To[int64](4), o.Underreplicated())
	assert.Equal(t, int32(2), o.Ready(), "a Pod that is being deleted does not count")
	o.Pods[0].Sample = nil
	assert.Nil(t, o.Underreplicated(), "one report is missing")
}

func TestVolumeOrdinal(t *testing.T) {
	for name, want := range map[string]int32{"data-demo-0": 0, "data-demo-7": 7, "data-demo-1000": 1000} {
		got, ok := VolumeOrdinal("demo", name)
		assert.True(t, ok, name)
		assert.Equal(t, want, got, name)
	}
	for _, name := range []string{
		"data-demo-007", "data-demo-", "data-demo--1", "data-demo-+1", "data-demo-1a", "data-demo-99999999999", "data-demo-0x1",
		"data-demo", "data-demo2-1", "data-other-1", "demo-1", "xdata-demo-1", "data-demo-1_0", "data-demo-a-1",
	} {
		_, ok := VolumeOrdinal("demo", name)
		assert.False(t, ok, name)
	}
}

func TestReclaimable(t *testing.T) {
	volumes := []Volume{{Ordinal: 0}, {Ordinal: 5}, {Ordinal: 6}, {Ordinal: 7}, {Ordinal: 8, Terminating: true}}
	assert.Equal(t, []Volume{{Ordinal: 6}, {Ordinal: 7}}, Reclaimable(6, healthy(6), time.Hour, volumes))
	assert.Empty(t, Reclaimable(5, healthy(6), time.Hour, volumes), "the size is not reached")
	recent := healthy(6)
	recent.SinceRemoval--
	assert.Empty(t, Reclaimable(6, recent, time.Hour, volumes), "a node was removed too recently")
	assert.Empty(t, Reclaimable(7, healthy(6), time.Hour, volumes), "a node is added")
	for _, obstacle := range obstacles {
		if obstacle.reason == "DiskFull" {
			continue
		}
		o := healthy(6)
		obstacle.put(o)
		assert.Empty(t, Reclaimable(6, o, time.Hour, volumes), obstacle.name)
	}
	assert.Empty(t, Decide(&Wanted{Nodes: 6}, healthy(6), &Load{}, volumes).Reclaim, "not requested")
	assert.Len(t, Decide(&Wanted{Nodes: 6, Reclaim: true}, healthy(6), &Load{}, volumes).Reclaim, 2)
}

// Nodes that never ran have no data: a size that the cluster cannot reach can be taken back.
func TestNodesThatNeverRanAreRemoved(t *testing.T) {
	pending := func() *Observation {
		o := healthy(8)
		o.Empty = map[int32]bool{}
		for ordinal := int32(5); ordinal < 8; ordinal++ {
			o.Pods[ordinal].Ready, o.Pods[ordinal].Sample, o.Pods[ordinal].NeverRan = false, nil, true
			o.Empty[ordinal] = true
		}
		for _, pod := range o.Pods[:5] {
			pod.Sample.Members = ptr.To[int64](5)
		}
		return o
	}
	assert.Equal(t, Step{Replicas: 7}, Next(5, pending(), Removal{DiskPercent: 80}), "one at a time")
	absent := pending()
	absent.Pods, absent.StatusReplicas = absent.Pods[:6], 6
	assert.Equal(t, Step{Replicas: 7}, Next(5, absent, Removal{DiskPercent: 80}), "a quota keeps Pods from being created")
	single := pending()
	single.ReplicationFactor = 1
	assert.Equal(t, Step{Replicas: 7}, Next(5, single, Removal{DiskPercent: 80}), "no copy is lost")
	created := pending()
	for ordinal := range int32(5) {
		created.Empty[ordinal], created.Pods[ordinal].Sample, created.Pods[ordinal].Ready = true, nil, false
	}
	assert.Equal(t, Step{Replicas: 7}, Next(3, created, Removal{}), "no node ever ran")

	for name, put := range map[string]func(*Observation){
		"the last node may have data":    func(o *Observation) { delete(o.Empty, 7) },
		"a node with data has no sample": func(o *Observation) { o.Pods[1].Sample = nil },
		"a node with data is not ready":  func(o *Observation) { o.Pods[4].Ready = false },
		"partitions have too few owners": func(o *Observation) { o.Pods[4].Sample.Underreplicated = ptr.To[int64](1) },
		"copies are compared":            func(o *Observation) { o.Pods[4].Rounds = ptr.To[int64](1) },
		"the size was not observed":      func(o *Observation) { o.Current = false },
		"a gap before the last nodes":    func(o *Observation) { delete(o.Empty, 6) },
	} {
		o := pending()
		put(o)
		step := Next(5, o, Removal{DiskPercent: 80})
		assert.Equal(t, int32(8), step.Replicas, name)
		assert.NotNil(t, step.Blocked, name)
	}
	assert.True(t, pending().EveryNodeSampled(), "the load of the nodes that run is known")
	o := pending()
	o.Pods[0].Sample = nil
	assert.False(t, o.EveryNodeSampled())
}
