// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/utils/ptr"
)

// withLost returns a cluster of 6 nodes with 3 copies, of which those with the ordinals have lost their
// volumes an hour ago, and all others have every copy.
func withLost(lost ...int32) *Observation {
	o := healthy(6)
	o.ReplicationFactor = 3
	for i := range o.Pods {
		pod := &o.Pods[i]
		pod.Rounds, pod.QuietRounds, pod.Factor = ptr.To[int64](4), ptr.To[int64](4), 3
		pod.Sample.EffectiveReplicas = ptr.To[int64](3)
		pod.Sample.Members = ptr.To(int64(6 - len(lost)))
		if slices.Contains(lost, pod.Ordinal) {
			*pod = Pod{Ordinal: pod.Ordinal, Revision: "1", NeverRan: true}
		}
	}
	for _, ordinal := range lost {
		o.Lost = append(o.Lost, Lost{Ordinal: ordinal, Why: "it is gone", For: time.Hour})
	}
	return o
}

// A lost volume is replaced on request or after the deadline of the user, and never by itself.
func TestALostVolumeIsReplacedOnRequestOrAfterADeadline(t *testing.T) {
	o := withLost(2)
	assert.Equal(t, Replacement{Node: &o.Lost[0]}, NextReplacement(o, time.Hour, 80))
	assert.Equal(t, Replacement{Waiting: &Block{"VolumeLost", "the volume of pod demo-2 is lost: it is gone; it is replaced when that has been so for 1h0m0.001s"}},
		NextReplacement(o, time.Hour+time.Millisecond, 80))
	assert.Equal(t, Replacement{Waiting: &Block{"VolumeLost", "the volume of pod demo-2 is lost: it is gone; it is replaced on request"}},
		NextReplacement(o, 0, 80))
	o.Lost[0].Requested = true
	assert.Equal(t, Replacement{Node: &o.Lost[0]}, NextReplacement(o, 0, 80))
	assert.Equal(t, Replacement{}, NextReplacement(healthy(6), time.Second, 80), "nothing is lost")
	o.Lost[0] = Lost{Ordinal: 2, Begun: true, For: time.Hour}
	assert.Equal(t, Replacement{}, NextReplacement(o, time.Second, 80), "the request was withdrawn")
}

// The gates of a removal are those of a replacement, with and without a node that works.
func TestEachObstacleBlocksAReplacement(t *testing.T) {
	for _, obstacle := range obstacles {
		o := healthy(6)
		o.Lost = []Lost{{Ordinal: 5, Requested: true}}
		require.Equal(t, Replacement{Node: &o.Lost[0]}, NextReplacement(o, 0, 80))
		obstacle.put(o)
		next := NextReplacement(o, 0, 80)
		assert.Nil(t, next.Node, obstacle.name)
		if assert.NotNil(t, next.Waiting, obstacle.name) {
			assert.Equal(t, obstacle.reason, next.Waiting.Reason, "%s: %s", obstacle.name, next.Waiting.Message)
		}
	}
	for name, put := range map[string]struct {
		reason string
		put    func(*Observation)
	}{
		"a node has no metrics":             {"MetricsUnavailable", func(o *Observation) { o.Pods[0].Sample = nil }},
		"a node has just started":           {"MetricsUnavailable", func(o *Observation) { o.Pods[1].Sample.Members = ptr.To[int64](0) }},
		"a node reports no members":         {"MetricsUnavailable", func(o *Observation) { o.Pods[1].Sample.Members = nil }},
		"a Pod is missing":                  {"MetricsUnavailable", func(o *Observation) { o.Pods = slices.Delete(o.Pods, 3, 4) }},
		"partitions have too few owners":    {"Underreplicated", func(o *Observation) { o.Pods[4].Sample.Underreplicated = ptr.To[int64](1) }},
		"each partition has one copy":       {"SingleCopy", func(o *Observation) { o.ReplicationFactor = 1 }},
		"a node is not ready":               {"NotAllReady", func(o *Observation) { o.Pods[3].Ready = false }},
		"a node is being deleted":           {"MetricsUnavailable", func(o *Observation) { o.Pods[3].Terminating = true }},
		"a removal is not over":             {"PodTerminating", func(o *Observation) { o.Pods = append(o.Pods, Pod{Ordinal: 6, Terminating: true}) }},
		"the size was not observed":         {"NotObserved", func(o *Observation) { o.Current = false }},
		"a Pod has not been created":        {"NotObserved", func(o *Observation) { o.StatusReplicas = 5 }},
		"a partition has too few copies":    {"MembersDiffer", func(o *Observation) { o.Pods[3].Sample.EffectiveReplicas = ptr.To[int64](2) }},
		"a node still sees the lost node":   {"MembersDiffer", func(o *Observation) { o.Pods[3].Sample.Members = ptr.To[int64](6) }},
		"a node sees a part of the nodes":   {"MembersDiffer", func(o *Observation) { o.Pods[3].Sample.Members = ptr.To[int64](4) }},
		"a node is joining":                 {"Repairing", func(o *Observation) { o.Pods[3].Sample.Joining = ptr.To[int64](1) }},
		"a node has compared too few times": {"Repairing", func(o *Observation) { o.Pods[3].Rounds = ptr.To[int64](3) }},
		"copies have moved":                 {"Repairing", func(o *Observation) { o.Pods[3].QuietRounds = ptr.To[int64](3) }},
		"a node does not report repairs":    {"MetricsUnavailable", func(o *Observation) { o.Pods[3].QuietRounds = nil }},
		"the nodes changed just now":        {"Settling", func(o *Observation) { o.SinceChange = 0 }},
		"a node keeps fewer copies":         {"RollingOut", func(o *Observation) { o.Pods[3].Factor = 2 }},
		"the lost nodes may have all copies": {"TooManyLost", func(o *Observation) {
			o.ReplicationFactor = 2
			o.Lost = withLost(2, 4).Lost
			o.Pods[4] = Pod{Ordinal: 4}
		}},
	} {
		o := withLost(2)
		require.NotNil(t, NextReplacement(o, time.Minute, 80).Node, name)
		put.put(o)
		next := NextReplacement(o, time.Minute, 80)
		assert.Nil(t, next.Node, name)
		if assert.NotNil(t, next.Waiting, name) {
			assert.Equal(t, put.reason, next.Waiting.Reason, "%s: %s", name, next.Waiting.Message)
		}
	}
}

// Three nodes of five with 4 copies have each partition, and report that all have too few owners: nothing
// else would ever let them replace the lost volumes.
func TestFewerNodesThanCopiesReplaceLostVolumes(t *testing.T) {
	o := withLost(2, 4)
	o.Replicas, o.StatusReplicas, o.Pods = 5, 5, o.Pods[:5]
	o.ReplicationFactor = 4
	for _, ordinal := range []int{0, 1, 3} {
		pod := &o.Pods[ordinal]
		pod.Factor, pod.Rounds, pod.QuietRounds = 4, ptr.To[int64](6), ptr.To[int64](6)
		pod.Sample.Members, pod.Sample.EffectiveReplicas, pod.Sample.Underreplicated = ptr.To[int64](3), ptr.To[int64](3), ptr.To[int64](4096)
	}
	require.NotNil(t, NextReplacement(o, time.Minute, 80).Node)
	o.Pods[3].QuietRounds = ptr.To[int64](5)
	assert.Equal(t, "Repairing", NextReplacement(o, time.Minute, 80).Waiting.Reason, "the copies may differ")
	o.Pods[3].QuietRounds, o.Pods[3].Sample.EffectiveReplicas = ptr.To[int64](6), ptr.To[int64](2)
	assert.Equal(t, "MembersDiffer", NextReplacement(o, time.Minute, 80).Waiting.Reason, "a node is not active")
	o.Pods[3].Sample.EffectiveReplicas = ptr.To[int64](3)
	require.NotNil(t, NextReplacement(o, time.Minute, 80).Node)

	o = withLost(0, 1, 2)
	o.Replicas, o.StatusReplicas, o.Pods = 4, 4, o.Pods[:4]
	o.ReplicationFactor = 4
	pod := &o.Pods[3]
	pod.Factor, pod.Rounds, pod.QuietRounds = 4, ptr.To[int64](6), ptr.To[int64](6)
	pod.Sample.Members, pod.Sample.EffectiveReplicas, pod.Sample.Underreplicated = ptr.To[int64](1), ptr.To[int64](1), ptr.To[int64](4096)
	assert.Equal(t, "Underreplicated", NextReplacement(o, time.Minute, 80).Waiting.Reason, "the last node compares its copies with no other")
}

// Of several lost volumes one is replaced at a time: the volume whose claim is being deleted, then the volume
// whose replacement has begun, nodes that do not work before nodes that do.
func TestOneVolumeIsReplacedAtATime(t *testing.T) {
	o := withLost(2, 4)
	assert.Equal(t, int32(2), NextReplacement(o, time.Minute, 80).Node.Ordinal)
	o.Lost[1].Begun = true
	assert.Equal(t, int32(4), NextReplacement(o, time.Minute, 80).Node.Ordinal)
	o.Lost = append([]Lost{{Ordinal: 0, Requested: true}}, o.Lost...)
	assert.Equal(t, int32(4), NextReplacement(o, time.Minute, 80).Node.Ordinal)
	o.Lost[2].Begun = false
	assert.Equal(t, int32(2), NextReplacement(o, time.Minute, 80).Node.Ordinal, "a node that works comes last")

	// The first has been replaced, and joins: its new volume is not lost.
	o = withLost(2, 4)
	o.Pods[2] = Pod{Ordinal: 2, Revision: "1", NeverRan: true}
	o.Lost = o.Lost[1:]
	next := NextReplacement(o, time.Minute, 80)
	assert.Nil(t, next.Node)
	assert.Equal(t, "MetricsUnavailable", next.Waiting.Reason)

	// A claim that is being deleted keeps the others waiting, whatever its own Pod waits for.
	o = withLost(2, 4)
	o.Lost[1].Begun, o.Lost[1].Deleting, o.Pods[0].Ready = true, true, false
	next = NextReplacement(o, time.Minute, 80)
	assert.Equal(t, &o.Lost[1], next.Node)
	assert.Equal(t, "NotAllReady", next.Waiting.Reason)
}

// A replacement that has begun is the only change of the nodes, and it waits for a change that is going on.
func TestAReplacementExcludesOtherChanges(t *testing.T) {
	wanted := &Wanted{Nodes: 6, ReplicationFactor: 3, Reclaim: true}
	o := withLost()
	o.Lost = []Lost{{Ordinal: 1, Requested: true}}
	volumes := []Volume{{Ordinal: 7}}
	require.Len(t, Decide(wanted, withLost(), &Load{}, volumes).Reclaim, 1)
	decision := Decide(wanted, o, &Load{}, volumes)
	assert.Equal(t, Replacement{Node: &o.Lost[0]}, decision.Replacement)
	assert.Empty(t, decision.Reclaim, "the volumes of removed nodes are kept")

	// A removal, an update or a new node comes first.
	o.Partition = 6
	removing := Decide(&Wanted{Nodes: 5, ReplicationFactor: 3}, o, &Load{}, nil)
	assert.Equal(t, int32(5), removing.Step.Replicas)
	assert.Nil(t, removing.Replacement.Node)
	assert.Equal(t, "the volume of pod demo-1 is not replaced yet: the size changes first", removing.Replacement.Waiting.Message)
	growing := Decide(&Wanted{Nodes: 7, ReplicationFactor: 3}, o, &Load{}, nil)
	assert.Equal(t, int32(7), growing.Step.Replicas)
	assert.Nil(t, growing.Replacement.Node)
	o.UpdateRevision = "2"
	updating := Decide(wanted, o, &Load{}, nil)
	assert.Equal(t, int32(5), updating.Rollout.Partition)
	assert.Nil(t, updating.Replacement.Node)

	// Not if the replacement has begun.
	o.Lost[0].Begun = true
	held := Decide(wanted, o, &Load{}, nil)
	assert.Equal(t, Rollout{Partition: 6, Waiting: &Block{"Replacing", "the volume of pod demo-1 is being replaced"}}, held.Rollout)
	assert.Equal(t, &o.Lost[0], held.Replacement.Node)
	o.UpdateRevision = "1"
	held = Decide(&Wanted{Nodes: 5, ReplicationFactor: 3}, o, &Load{}, nil)
	assert.Equal(t, Step{Replicas: 6, Blocked: &Block{"Replacing", "the volume of pod demo-1 is being replaced"}}, held.Step)
	assert.Equal(t, &o.Lost[0], held.Replacement.Node)
}

// A node whose volume is lost does not keep nodes that never ran from being taken back, nor do these keep the
// size. A node that works is not replaced while the others would be too full.
func TestAReplacementAndTheSize(t *testing.T) {
	o := withLost(2)
	o.Pods[5], o.Empty = Pod{Ordinal: 5, Revision: "1", NeverRan: true}, map[int32]bool{5: true}
	assert.Equal(t, Step{Replicas: 5}, Next(4, o, Removal{DiskPercent: 80}))
	o = withLost()
	o.Lost = []Lost{{Ordinal: 1, Requested: true}}
	o.Pods[1].Sample.DiskAvailable, o.Pods[3].Sample.DiskAvailable = ptr.To(0.0), ptr.To(39.0)
	next := NextReplacement(o, 0, 80)
	assert.Equal(t, "DiskFull", next.Waiting.Reason)
	assert.Equal(t, "the volume of pod demo-1 is not replaced yet: a volume would be used to 81 %, more than 80 %", next.Waiting.Message)
}

// A claim that a user deletes is deleted, with its volume, when its Pod ends. So its node is replaced as on request, and
// no update restarts its Pod before, nor one that would repair it.
func TestAnUpdateWaitsForAClaimThatIsBeingDeleted(t *testing.T) {
	wanted := &Wanted{Nodes: 6, ReplicationFactor: 2}
	doomed := func() *Observation {
		o := rollingOut(6, 5)
		o.Lost = []Lost{{Ordinal: 4, Deleting: true}}
		return o
	}
	waiting := Rollout{Partition: 5, Waiting: &Block{"Replacing", "the volume claim of pod demo-4 is being deleted, and its volume would be deleted with the pod"}}
	o := doomed()
	decision := Decide(wanted, o, &Load{}, nil)
	assert.Equal(t, waiting, decision.Rollout)
	assert.Equal(t, Replacement{Node: &o.Lost[0]}, decision.Replacement, "between the updates of two Pods")

	o = doomed()
	o.Pods[0].QuietRounds = ptr.To[int64](2)
	decision = Decide(wanted, o, &Load{}, nil)
	assert.Equal(t, waiting, decision.Rollout)
	assert.Equal(t, "Repairing", decision.Replacement.Waiting.Reason)

	o = doomed()
	o.ReplicationFactor = 1
	decision = Decide(&Wanted{Nodes: 6, ReplicationFactor: 1}, o, &Load{}, nil)
	assert.Equal(t, waiting, decision.Rollout)
	assert.Equal(t, "SingleCopy", decision.Replacement.Waiting.Reason)

	o = doomed()
	o.Lost[0].Begun = true
	assert.Equal(t, &o.Lost[0], Decide(wanted, o, &Load{}, nil).Replacement.Node)

	// It comes before a node whose replacement waits for the update, and after a node that does not work.
	o = doomed()
	o.Lost = append([]Lost{{Ordinal: 0, Requested: true, Begun: true}}, o.Lost...)
	assert.Equal(t, int32(4), NextReplacement(o, 0, 80).Node.Ordinal)
	o = withLost(3)
	o.Lost = append([]Lost{{Ordinal: 2, Deleting: true, Begun: true}}, o.Lost...)
	assert.Equal(t, int32(3), NextReplacement(o, time.Minute, 80).Node.Ordinal)

	o = rollingOut(3, 3)
	breakPod(o, 0)
	require.Equal(t, []int32{0}, NextRollout(o).Replace)
	o.Lost = []Lost{{Ordinal: 0, Deleting: true}}
	assert.Empty(t, NextRollout(o).Replace)
}
