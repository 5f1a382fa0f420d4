// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import (
	"time"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// Step is what the size of the StatefulSet may be set to now.
type Step struct {
	// Replicas is the size, the present one if nothing changes.
	Replicas int32
	// Blocked is why a removal waits, nil if none does.
	Blocked *Block
}

// Removal is what a removal depends on in addition to the copies of the data.
type Removal struct {
	// DiskPercent is the used share of a volume that a removal must not exceed.
	DiskPercent int32
	// Wait is how long the next removal is to wait because of the last change of the size.
	Wait time.Duration
}

// Next returns the next step towards target. Nodes are added all at once, because that
// loses no copy, and removed one at a time, only while every copy exists.
func Next(target int32, o *Observation, removal Removal) Step {
	if target >= o.Replicas {
		return Step{Replicas: target}
	}
	blocked := o.gate(none)
	if blocked == nil {
		blocked = o.checkRemoval(removal)
	}
	if blocked != nil {
		return Step{Replicas: o.Replicas, Blocked: blocked}
	}
	return Step{Replicas: o.Replicas - 1}
}

func (o *Observation) checkRemoval(removal Removal) *Block {
	if o.rolling() {
		return block(v1alpha1.ReasonRollingOut, "pods are being updated")
	}
	if found := o.checkDisk(removal.DiskPercent); found != nil {
		return found
	}
	if removal.Wait > 0 {
		return block(v1alpha1.ReasonStabilizing, "the size changed too recently")
	}
	return nil
}

// Floor returns the least size of a cluster: one node may be missing, and every copy still
// has a node.
func Floor(replicationFactor int32) int32 { return replicationFactor + 1 }

// FixedTarget returns the size of a cluster without autoscaling.
func FixedTarget(nodes, replicationFactor int32) int32 { return max(nodes, Floor(replicationFactor)) }

// Initial returns the size that a StatefulSet is created with: a volume that exists
// belonged to a node of an earlier StatefulSet, and may have the only copy of data.
func Initial(target int32, volumes []Volume) int32 {
	for _, volume := range volumes {
		target = max(target, volume.Ordinal+1)
	}
	return target
}
