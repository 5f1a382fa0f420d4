// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import (
	"time"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// Wanted is what the user requests.
type Wanted struct {
	// Nodes is the size of a cluster without autoscaling, and the initial one otherwise.
	Nodes, ReplicationFactor int32
	// Autoscaler is nil for a cluster of fixed size.
	Autoscaler *Autoscaler
	// Stabilization is that of the autoscaler that determined the present size; 0 for none.
	// It applies until a cluster without autoscaling has its size.
	Stabilization time.Duration
	// Reclaim is true if the volumes of removed nodes are to be deleted.
	Reclaim bool
}

// Decision is what is to be done now.
type Decision struct {
	// Target is the size that the cluster is brought to.
	Target int32
	// Step is the size that it may have now.
	Step Step
	// Rollout is the state of an update; its partition fits the size of the step.
	Rollout Rollout
	// Reclaim are the volumes that may be deleted.
	Reclaim []Volume
}

// Create returns the size of a StatefulSet that does not exist yet, and its target.
func Create(wanted *Wanted, volumes []Volume) (replicas, target int32) {
	target = FixedTarget(wanted.Nodes, wanted.ReplicationFactor)
	if wanted.Autoscaler != nil {
		target = wanted.Autoscaler.Clamp(wanted.Nodes)
	}
	return Initial(target, volumes), target
}

// Decide returns what is to be done with a cluster whose StatefulSet exists.
func Decide(wanted *Wanted, o *Observation, load *Load, volumes []Volume) Decision {
	removal := Removal{DiskPercent: DefaultDiskPercent}
	decision := Decision{Target: FixedTarget(wanted.Nodes, wanted.ReplicationFactor)}
	if autoscaler := wanted.Autoscaler; autoscaler != nil {
		decision.Target = autoscaler.Target(o.Replicas, load)
		if autoscaler.DiskPercent > 0 {
			removal.DiskPercent = autoscaler.DiskPercent
		}
	} else if load.SinceScale != nil {
		removal.Wait = wanted.Stabilization - *load.SinceScale
	}
	decision.Step = Next(decision.Target, o, removal)
	decision.Rollout = NextRollout(o)
	if size := decision.Step.Replicas; !decision.Rollout.Done && size != o.Replicas {
		// One change at a time: that of the size comes first. A Pod that is added while no
		// Pod is updated yet gets the revision of the others.
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
		decision.Reclaim = Reclaimable(decision.Target, o, volumes)
	}
	return decision
}
