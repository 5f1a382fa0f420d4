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
	o.Pods[4].Ready, o.Pods[4].Failing, o.Pods[4].Sample = false, "ImagePullBackOff", nil
	rollout := NextRollout(o)
	assert.Equal(t, Rollout{Partition: 4, Halted: true, Waiting: &Block{"RolloutHalted", "the updated pod demo-4 fails: ImagePullBackOff"}}, rollout)

	// An update with another template begins with the failing Pod, although it is not
	// ready.
	o.UpdateRevision, o.Partition = "3", 5
	assert.Equal(t, Rollout{Partition: 4}, NextRollout(o))
	o.Pods[1].Ready = false
	assert.Equal(t, int32(5), NextRollout(o).Partition, "another Pod is not ready")
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
