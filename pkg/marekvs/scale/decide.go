// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import (
	"math"
	"time"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// Wanted has the fields of the spec that decide about the size.
type Wanted struct {
	// Nodes is the size of a cluster without autoscaling, and the initial size of a cluster
	// with autoscaling.
	Nodes, ReplicationFactor int32
	// Autoscaler is nil for a cluster of fixed size.
	Autoscaler *Autoscaler
	// Stabilization is the stabilization of the autoscaler that determined the present
	// size, else 0. After autoscaling was disabled, it applies until the cluster has its
	// size.
	Stabilization time.Duration
	// Reclaim is true if the volumes of removed nodes are to be deleted, ReclaimAfter after the
	// last removal.
	Reclaim      bool
	ReclaimAfter time.Duration
	// ReplaceAfter is how long a volume must have been lost before it is replaced without a request, 0
	// for never.
	ReplaceAfter time.Duration
}

// Decision is the next change of a cluster.
type Decision struct {
	// Target is the size that the cluster is brought to.
	Target int32
	// Step is the next size.
	Step Step
	// Rollout is the state of an update. Its partition fits the next size.
	Rollout Rollout
	// Reclaim has the volumes that may be deleted.
	Reclaim []Volume
	// Disk is what is done about full volumes.
	Disk Disk
	// Replacement is what is done about lost volumes.
	Replacement Replacement
}

// Disk is what an autoscaler does about full volumes.
type Disk struct {
	// Full is true while a volume is used to targetDiskPercent.
	Full bool
	// Stopped is why no node is added for it, nil if a node is added or will be.
	Stopped *Block
	// AtGrowth is the used share of the fullest volume when a node was last added for it, in percent;
	// nil if the volumes were not full since.
	AtGrowth *float64
}

// Create returns the initial and the target size of a StatefulSet that does not exist yet.
func Create(wanted *Wanted, volumes []Volume) (replicas, target int32) {
	target = FixedTarget(wanted.Nodes, wanted.ReplicationFactor)
	if wanted.Autoscaler != nil {
		target = wanted.Autoscaler.Clamp(wanted.Nodes)
	}
	return Initial(target, volumes), target
}

// Decide returns the next change of a cluster whose StatefulSet exists.
func Decide(wanted *Wanted, o *Observation, load *Load, volumes []Volume) Decision {
	removal := Removal{DiskPercent: DefaultDiskPercent}
	decision := Decision{Target: FixedTarget(wanted.Nodes, wanted.ReplicationFactor)}
	if autoscaler := wanted.Autoscaler; autoscaler != nil {
		now := *load
		now.CopiesComplete = o.checkCopies(none) == nil && o.checkQuiet(none) == nil
		decision.Target = autoscaler.Target(o.Replicas, &now)
		decision.Disk = autoscaler.disk(o.Replicas, decision.Target, &now)
		if autoscaler.DiskPercent > 0 {
			removal.DiskPercent = autoscaler.DiskPercent
		}
	} else if load.SinceScale != nil {
		removal.Wait = wanted.Stabilization - *load.SinceScale
	}
	decision.Step = Next(decision.Target, o, removal)
	decision.Rollout = NextRollout(o)
	decision.replaceVolumes(o, wanted.ReplaceAfter, removal.DiskPercent)
	switch size := decision.Step.Replicas; {
	case size == o.Replicas:
	case decision.Rollout.Done && decision.Rollout.Partition == o.Replicas:
		decision.Rollout.Partition = size
	case decision.Rollout.Halted && size > o.Replicas:
		// The new nodes get the former revision: the present revision fails.
		decision.Rollout.Partition = size
	case !decision.Rollout.Done:
		// One change at a time: the size changes first. A Pod that is added before the
		// first Pod was updated gets the old revision.
		partition := max(decision.Rollout.Partition, min(o.Partition, o.Replicas))
		if partition >= o.Replicas {
			partition = size
		}
		decision.Rollout.Partition = min(partition, size)
		if decision.Rollout.Waiting == nil {
			decision.Rollout.Waiting = block(v1alpha1.ReasonRollingOut, "the size changes first")
		}
	}
	if wanted.Reclaim {
		decision.Reclaim = Reclaimable(decision.Target, o, wanted.ReclaimAfter, volumes)
	}
	return decision
}

// hysteresis limits the load of the remaining nodes when a node is removed, as a share of
// the target load. It keeps the size from changing back.
const hysteresis = 0.6

// Autoscaler sizes a cluster by its load.
type Autoscaler struct {
	MinNodes, MaxNodes, ReplicationFactor int32
	// OpsPerNode is how many commands per second a node is to execute.
	OpsPerNode int64
	// UpCooldown is how long the size must be unchanged before nodes are added.
	// DownStabilization is how long the size must be unchanged and the load low before a
	// node is removed.
	UpCooldown, DownStabilization time.Duration
	// DiskPercent is the used share of a volume from which a node is added, as long as that helps; 0
	// to ignore volumes.
	DiskPercent int32
}

// Load is the input of an autoscaler.
type Load struct {
	// Rate is the commands per second of the nodes whose rate is known; nil if no rate is
	// known.
	Rate *float64
	// Complete is true when the rate of every node is known. Otherwise Rate is a lower
	// bound.
	Complete bool
	// Peak is the highest complete rate of the stabilization window; nil if the rate was
	// not complete all the time.
	Peak *float64
	// SinceScale is how long the size has been unchanged; nil if it never changed.
	SinceScale *time.Duration
	// DiskUsed and DiskAfterRemoval are the used share of the fullest volume in percent,
	// now and with one node less; nil if unknown.
	DiskUsed, DiskAfterRemoval *float64
	// DiskAtGrowth is Disk.AtGrowth of the last decision.
	DiskAtGrowth *float64
	// CopiesComplete is true while no copy moves. Before, the used shares say nothing about the last
	// node that was added.
	CopiesComplete bool
}

// Clamp returns the allowed size that is nearest to nodes.
func (a *Autoscaler) Clamp(nodes int32) int32 {
	floor := max(a.MinNodes, Floor(a.ReplicationFactor))
	return min(max(nodes, floor), max(a.MaxNodes, floor))
}

// Target returns the size for the load. If the load is unknown, it returns the present
// size.
func (a *Autoscaler) Target(current int32, load *Load) int32 {
	if within := a.Clamp(current); within != current {
		return within
	}
	want := a.Clamp(max(a.ideal(load), a.diskIdeal(current, load)))
	switch {
	case want > current:
		if waited(load.SinceScale, a.UpCooldown) {
			return want
		}
	case a.mayRemove(current, load) && waited(load.SinceScale, a.DownStabilization):
		return a.Clamp(current - 1)
	}
	return current
}

// ideal returns the number of nodes for the rate. If the rate is incomplete, the result is
// a lower bound.
func (a *Autoscaler) ideal(load *Load) int32 {
	if load.Rate == nil {
		return 0
	}
	return int32(min(math.Ceil(*load.Rate/float64(a.OpsPerNode)), math.MaxInt32))
}

// diskIdeal returns one node more than current for a full volume. One node is added at a time, each
// only if the node before has helped: the store does not delete copies that a node no longer owns
// (github.com/yannick/marekvs, commit defc648, line 231 of consistency.md in its documents), so that
// the used share may not fall however many nodes are added.
func (a *Autoscaler) diskIdeal(current int32, load *Load) int32 {
	if a.diskFull(load) && load.CopiesComplete && !growthFailed(load) {
		return current + 1
	}
	return 0
}

func (a *Autoscaler) diskFull(load *Load) bool {
	return a.DiskPercent > 0 && load.DiskUsed != nil && *load.DiskUsed >= float64(a.DiskPercent)
}

// diskDrop is how much the used share must have fallen since a node was added, in percent.
const diskDrop = 1

// growthFailed reports whether the fullest volume is as full as when a node was last added for it.
func growthFailed(load *Load) bool {
	return load.DiskAtGrowth != nil && *load.DiskUsed > *load.DiskAtGrowth-diskDrop
}

// disk returns what is done about full volumes by a decision for target nodes.
func (a *Autoscaler) disk(current, target int32, load *Load) Disk {
	switch {
	case a.DiskPercent == 0:
		return Disk{}
	case load.DiskUsed == nil:
		return Disk{AtGrowth: load.DiskAtGrowth}
	case !a.diskFull(load):
		return Disk{}
	}
	disk := Disk{Full: true, AtGrowth: load.DiskAtGrowth}
	switch {
	case target > current:
		disk.AtGrowth = load.DiskUsed
	case a.Clamp(current+1) <= current:
		disk.Stopped = block(v1alpha1.ReasonDiskFull, "a volume is used to %.0f %%, and no node is added for it, because maxNodes is %d", *load.DiskUsed, a.MaxNodes)
	case growthFailed(load):
		disk.Stopped = block(v1alpha1.ReasonDiskFull, "a volume is used to %.0f %%, and no node is added for it until that helps: it was used to %.0f %% when a node was last added",
			*load.DiskUsed, *load.DiskAtGrowth)
	}
	return disk
}

// mayRemove reports whether the load was low for the whole window, and would still be low
// with one node less.
func (a *Autoscaler) mayRemove(current int32, load *Load) bool {
	if !load.Complete || load.Rate == nil || load.Peak == nil {
		return false
	}
	if a.DiskPercent > 0 && load.DiskAfterRemoval != nil && *load.DiskAfterRemoval >= float64(a.DiskPercent) {
		return false
	}
	perNode := max(*load.Peak, *load.Rate) / float64(max(current-1, 1))
	return perNode < hysteresis*float64(a.OpsPerNode)
}

func waited(since *time.Duration, period time.Duration) bool { return since == nil || *since >= period }

// Floor returns the minimum size of a cluster. With one node missing, every copy still has
// a node.
func Floor(replicationFactor int32) int32 { return replicationFactor + 1 }

// FixedTarget returns the size of a cluster without autoscaling.
func FixedTarget(nodes, replicationFactor int32) int32 { return max(nodes, Floor(replicationFactor)) }

// Initial returns the size for the creation of a StatefulSet. It includes the nodes of
// existing volumes: a volume of an earlier StatefulSet may have the only copy of data. No cluster
// ever had a volume beyond MaxNodes.
func Initial(target int32, volumes []Volume) int32 {
	for _, volume := range volumes {
		if volume.Ordinal < MaxNodes {
			target = max(target, volume.Ordinal+1)
		}
	}
	return target
}

// MaxNodes is the largest size that the API server accepts
// (docs/marekvs-api.md).
const MaxNodes = 1000
