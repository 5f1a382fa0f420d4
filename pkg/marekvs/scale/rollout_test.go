// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/utils/ptr"
)

// rollingOut returns a cluster whose Pods from partition on are updated.
func rollingOut(nodes, partition int32) *Observation {
	o := healthy(nodes)
	o.UpdateRevision, o.Partition = "2", partition
	for i := partition; i < nodes; i++ {
		o.Pods[i].Revision = "2"
	}
	return o
}

// One Pod at a time, the highest ordinal first, to the end.
func TestRolloutGoesDownOneOrdinalAtATime(t *testing.T) {
	for partition := int32(5); partition > 0; partition-- {
		assert.Equal(t, Rollout{Partition: partition - 1}, NextRollout(rollingOut(5, partition)))
	}
	assert.Equal(t, Rollout{Done: true}, NextRollout(rollingOut(5, 0)))
	assert.Equal(t, Rollout{Done: true, Partition: 5}, NextRollout(healthy(5)))
}

// Without an update the partition is the size, also when that changes.
func TestThePartitionRestsAtTheSize(t *testing.T) {
	for _, nodes := range []int32{4, 5, 7} {
		decision := Decide(&Wanted{Nodes: nodes, ReplicationFactor: 2}, healthy(5), &Load{}, nil)
		assert.Equal(t, nodes, decision.Step.Replicas)
		assert.Equal(t, nodes, decision.Rollout.Partition)
		assert.True(t, decision.Rollout.Done)
	}
}

func TestAChangedTemplateUpdatesNoPodByItself(t *testing.T) {
	o := healthy(5)
	o.TemplateCurrent = false
	rollout := NextRollout(o)
	assert.Equal(t, int32(5), rollout.Partition)
	assert.False(t, rollout.Done)
	o = healthy(5)
	o.Current, o.Partition = false, 5
	rollout = NextRollout(o)
	assert.Equal(t, int32(5), rollout.Partition, "the update revision is not that of the template yet")
	assert.False(t, rollout.Done)
}

// quiet has the names of the obstacles that an update does not wait for: clients that write all the
// time make nodes repair records all the time.
var quiet = []string{"copies have moved", "a node does not report repairs"}

func TestAnUpdateDoesNotWaitForRepairsToEnd(t *testing.T) {
	for _, obstacle := range obstacles {
		if !slices.Contains(quiet, obstacle.name) {
			continue
		}
		o := rollingOut(6, 5)
		obstacle.put(o)
		assert.Equal(t, int32(4), NextRollout(o).Partition, obstacle.name)
	}
}

// The next Pod is updated only when all others have every copy.
func TestEachObstacleBlocksARollout(t *testing.T) {
	for _, obstacle := range obstacles {
		if slices.Contains([]string{"DiskFull", "RollingOut", "SingleCopy"}, obstacle.reason) || slices.Contains(quiet, obstacle.name) {
			continue
		}
		o := rollingOut(6, 5)
		obstacle.put(o)
		rollout := NextRollout(o)
		assert.Equal(t, int32(5), rollout.Partition, obstacle.name)
		assert.NotNil(t, rollout.Waiting, obstacle.name)
		assert.False(t, rollout.Halted, obstacle.name)
	}
}

// A Pod of the new revision that fails halts the rollout.
func TestAFailingPodHaltsTheRollout(t *testing.T) {
	o := rollingOut(5, 4)
	breakPod(o, 4)
	rollout := NextRollout(o)
	assert.Equal(t, Rollout{Partition: 4, Halted: true, Waiting: &Block{"RolloutHalted", "the updated pod demo-4 fails: CrashLoopBackOff"}}, rollout)

	// An update with another template begins with the failing Pod.
	o.UpdateRevision, o.Partition = "3", 5
	rollout = NextRollout(o)
	assert.Equal(t, []int32{4}, rollout.Replace)
	assert.True(t, rollout.OnDelete)
	assert.Equal(t, int32(5), rollout.Partition)
	o.Pods[1].Ready = false
	assert.Equal(t, []int32{4}, NextRollout(o).Replace, "another Pod that is not ready does not keep it from its repair")
}

// breakPod makes the container of a Pod fail. The other nodes do not see it any more.
func breakPod(o *Observation, broken ...int32) {
	for _, ordinal := range broken {
		o.Pods[ordinal].Ready, o.Pods[ordinal].Sample, o.Pods[ordinal].Failing = false, nil, "CrashLoopBackOff"
	}
	for _, pod := range o.Pods {
		if pod.Sample != nil {
			pod.Sample.Members = ptr.To(int64(len(o.Pods) - len(broken)))
		}
	}
}

// A Pod that does not work gets the new template at once, whatever its ordinal and the state of the
// others: kubernetes/kubernetes#67250, kubernetes/kubernetes#60164.
func TestPodsThatDoNotWorkAreReplacedFirst(t *testing.T) {
	neverRan := func(o *Observation, ordinals ...int32) {
		breakPod(o, ordinals...)
		for _, ordinal := range ordinals {
			o.Pods[ordinal].Failing, o.Pods[ordinal].NeverRan = "", true
		}
	}
	for name, c := range map[string]struct {
		change func(*Observation)
		want   []int32
	}{
		"the Pod with the lowest ordinal":     {func(o *Observation) { breakPod(o, 0) }, []int32{0}},
		"every Pod of a new cluster":          {func(o *Observation) { breakPod(o, 2, 0, 1) }, []int32{0, 1, 2}},
		"Pods that no Node accepts":           {func(o *Observation) { neverRan(o, 1, 2) }, []int32{1, 2}},
		"a Pod that is not ready for a while": {func(o *Observation) { o.Pods[0].Ready = false }, nil},
		"a Pod that is being deleted":         {func(o *Observation) { breakPod(o, 0); o.Pods[0].Terminating = true }, nil},
		"a Pod that is already updated":       {func(o *Observation) { o.Pods[1].Revision = "2"; breakPod(o, 1) }, nil},
		"an updated Pod fails": {func(o *Observation) {
			o.Pods[1].Revision = "2"
			breakPod(o, 0, 1)
		}, nil},
		"an updated Pod fails, and no other Pod works": {func(o *Observation) {
			o.Pods[1].Revision = "2"
			breakPod(o, 0, 1, 2)
		}, []int32{0, 2}},
	} {
		o := rollingOut(3, 3)
		c.change(o)
		rollout := NextRollout(o)
		assert.Equal(t, c.want, rollout.Replace, name)
		assert.Equal(t, c.want != nil, rollout.OnDelete, name)
		assert.Equal(t, int32(3), rollout.Partition, name)
		assert.NotNil(t, rollout.Waiting, name)
	}
}

// While a Pod that was deleted does not exist again, it would be created from the former revision with
// another update strategy. Then the update goes on, past the Pods that have been replaced.
func TestAReplacedPodGetsTheNewRevision(t *testing.T) {
	o := rollingOut(3, 3)
	o.OnDelete, o.Partition = true, 0
	breakPod(o, 2)
	o.Pods[2].Terminating = true
	rollout := NextRollout(o)
	assert.True(t, rollout.OnDelete, "it is being deleted")
	assert.Empty(t, rollout.Replace)
	missing := *o
	missing.Pods = o.Pods[:2]
	assert.True(t, NextRollout(&missing).OnDelete, "it does not exist yet")
	unobserved := *o
	unobserved.Current = false
	assert.True(t, NextRollout(&unobserved).OnDelete)

	o = rollingOut(3, 2)
	o.OnDelete, o.Partition = true, 0
	o.Pods[2].Ready = false
	rollout = NextRollout(o)
	assert.Equal(t, Rollout{Partition: 2, Waiting: &Block{"NotAllReady", "2 of 3 pods ready"}}, rollout)
	o.Pods[2].Ready = true
	assert.Equal(t, Rollout{Partition: 1}, NextRollout(o))
}

// The update is not done while its last Pod does not work.
func TestTheLastPodOfAnUpdateHaltsItToo(t *testing.T) {
	o := rollingOut(3, 0)
	breakPod(o, 0)
	rollout := NextRollout(o)
	assert.True(t, rollout.Halted)
	assert.False(t, rollout.Done)
	assert.Equal(t, int32(0), rollout.Partition)
	o.Pods[0].Failing = ""
	assert.Equal(t, Rollout{Waiting: &Block{"RollingOut", "pod demo-0 is being updated"}}, NextRollout(o))

	// A Pod that fails later halts no update.
	o = healthy(3)
	breakPod(o, 0)
	assert.Equal(t, Rollout{Done: true, Partition: 3}, NextRollout(o))
}

// Nodes report at most as many copies as they keep, so before their update they report the former
// factor. They are updated nevertheless; a removal waits until they are.
func TestAnotherReplicationFactorIsRolledOut(t *testing.T) {
	for _, c := range []struct{ former, factor int32 }{{2, 3}, {3, 2}, {1, 2}} {
		o := rollingOut(5, 5)
		o.ReplicationFactor = c.factor
		for i := range o.Pods {
			o.Pods[i].Factor = c.former
			o.Pods[i].Sample.EffectiveReplicas = ptr.To(int64(c.former))
			o.Pods[i].Rounds, o.Pods[i].QuietRounds = ptr.To[int64](4), ptr.To[int64](4)
		}
		assert.Equal(t, Rollout{Partition: 4}, NextRollout(o), "from %d to %d", c.former, c.factor)
		o.Pods[4].Factor, o.Pods[4].Revision, o.Partition = c.factor, "2", 4
		o.Pods[4].Sample.EffectiveReplicas = ptr.To(int64(c.factor))
		assert.Equal(t, Rollout{Partition: 3}, NextRollout(o), "from %d to %d", c.former, c.factor)
		if c.former < c.factor {
			blocked := Next(4, o, Removal{DiskPercent: 80}).Blocked
			assert.Equal(t, "RollingOut", blocked.Reason)
			assert.Contains(t, blocked.Message, "until it is updated")
		}
		o.Pods[0].Sample.EffectiveReplicas = ptr.To(int64(min(c.former, c.factor) - 1))
		assert.Equal(t, "MembersDiffer", NextRollout(o).Waiting.Reason, "a copy is missing")
	}
}

// A removal happens before an update that has not begun, and waits for an update that has
// begun.
func TestRemovalAndRolloutOneAfterTheOther(t *testing.T) {
	wanted := &Wanted{Nodes: 3, ReplicationFactor: 2}
	changed := healthy(5)
	changed.TemplateCurrent = false
	decision := Decide(wanted, changed, &Load{}, nil)
	assert.Equal(t, Step{Replicas: 4}, decision.Step)
	assert.Equal(t, int32(4), decision.Rollout.Partition, "no Pod is updated")

	pending := rollingOut(5, 5)
	decision = Decide(wanted, pending, &Load{}, nil)
	assert.Equal(t, Step{Replicas: 4}, decision.Step)
	assert.Equal(t, int32(4), decision.Rollout.Partition, "no Pod is updated")

	begun := rollingOut(5, 4)
	decision = Decide(wanted, begun, &Load{}, nil)
	assert.Equal(t, int32(5), decision.Step.Replicas)
	assert.Equal(t, "RollingOut", decision.Step.Blocked.Reason)
	assert.Equal(t, int32(3), decision.Rollout.Partition)

	stuck := rollingOut(5, 5)
	stuck.Pods[0].Sample.DiskAvailable = ptr.To(10.0)
	decision = Decide(wanted, stuck, &Load{}, nil)
	assert.Equal(t, "DiskFull", decision.Step.Blocked.Reason)
	assert.Equal(t, int32(4), decision.Rollout.Partition, "a removal that cannot proceed does not keep the update waiting")

	decision = Decide(wanted, rollingOut(5, 0), &Load{}, nil)
	assert.Equal(t, Step{Replicas: 4}, decision.Step, "the update is done")
	assert.True(t, decision.Rollout.Done)
}

// Nodes that are added before the first Pod was updated get the revision of the others.
func TestGrowthDuringARollout(t *testing.T) {
	decision := Decide(&Wanted{Nodes: 7, ReplicationFactor: 2}, func() *Observation {
		o := rollingOut(5, 5)
		o.Pods[0].Ready = false
		return o
	}(), &Load{}, nil)
	assert.Equal(t, Step{Replicas: 7}, decision.Step)
	assert.Equal(t, int32(7), decision.Rollout.Partition)
	decision = Decide(&Wanted{Nodes: 7, ReplicationFactor: 2}, rollingOut(5, 3), &Load{}, nil)
	assert.Equal(t, int32(3), decision.Rollout.Partition)
}

// Nodes that are added while an update is halted get the revision that works, and the former template
// can be rolled out again.
func TestGrowthWhileAnUpdateIsHalted(t *testing.T) {
	o := rollingOut(5, 4)
	breakPod(o, 4)
	decision := Decide(&Wanted{Nodes: 8, ReplicationFactor: 2}, o, &Load{}, nil)
	assert.Equal(t, Step{Replicas: 8}, decision.Step)
	assert.True(t, decision.Rollout.Halted)
	assert.Equal(t, int32(8), decision.Rollout.Partition)

	grown := healthy(8)
	grown.UpdateRevision, grown.Partition, grown.Pods[4].Revision = "2", 8, "2"
	breakPod(grown, 4)
	rollout := NextRollout(grown)
	assert.True(t, rollout.Halted, "the Pod still fails")
	assert.Equal(t, int32(8), rollout.Partition)
	grown.CurrentRevision, grown.UpdateRevision = "1", "1"
	assert.Equal(t, []int32{4}, NextRollout(grown).Replace, "the user goes back")
}
