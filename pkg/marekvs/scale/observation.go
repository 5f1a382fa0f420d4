// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package scale decides the number of nodes of a marekvs cluster, and what may be changed
// now without losing data. It is pure: it has no client, no clock and no log.
package scale

import (
	"fmt"
	"time"
)

// Sample is what one node reports of itself. A nil field means that there is no signal:
// the metric is missing, or its value is not valid.
type Sample struct {
	// Underreplicated is the number of partitions with too few owners.
	Underreplicated *int64
	// Members is the number of nodes that the node sees, itself included. It is 0 until
	// the node has refreshed it for the first time.
	Members *int64
	// EffectiveReplicas is the least number of copies that a partition has.
	EffectiveReplicas *int64
	// Joining is more than 0 while the node joins and takes over partitions.
	Joining *int64
	// DiskTotal and DiskAvailable are the bytes of its volume.
	DiskTotal, DiskAvailable *float64
	// WriteStopped is more than 0 when the node no longer writes because its volume is full.
	WriteStopped *int64
}

// Pod is one Pod of the StatefulSet.
type Pod struct {
	Ordinal     int32
	Ready       bool
	Terminating bool
	// Revision is the revision of the template that the Pod was created from.
	Revision string
	// Failing is why the container does not start, empty if it does.
	Failing string
	// Sample is what the node reports, nil for a node that does not.
	Sample *Sample
	// Rounds is how many times the node has compared its copies with those of the other
	// nodes since the last change of the nodes; nil if it does not report this.
	Rounds *int64
}

// Observation is what is known about a cluster at one time.
type Observation struct {
	// Name is the name of the StatefulSet.
	Name string
	// ReplicationFactor is the number of copies of each partition.
	ReplicationFactor int32
	// Replicas is the size of the StatefulSet, StatusReplicas the number of its Pods.
	Replicas, StatusReplicas int32
	// Current is true when the StatefulSet controller has observed the present spec.
	Current bool
	// Pods are all Pods of the StatefulSet, those that are being deleted included.
	Pods []Pod

	// TemplateCurrent is true when the StatefulSet has the wanted template.
	TemplateCurrent bool
	// Partition is the least ordinal that is updated to UpdateRevision.
	Partition int32
	// CurrentRevision and UpdateRevision are equal when every Pod was updated.
	CurrentRevision, UpdateRevision string

	// SinceChange is how long the nodes have been the same.
	SinceChange time.Duration
	// Settle is how long they must have been the same before the next removal.
	Settle time.Duration
}

// Block is a reason not to remove a node, and what explains it.
type Block struct {
	Reason, Message string
}

func block(reason, format string, args ...any) *Block {
	return &Block{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// none is the ordinal of no Pod.
const none int32 = -1

// expected returns the Pods that the cluster should have now, without those that are
// being deleted and without one ordinal, and how many there should be.
func (o *Observation) expected(except int32) (pods []Pod, want int) {
	for _, pod := range o.Pods {
		if pod.Ordinal < o.Replicas && pod.Ordinal != except && !pod.Terminating {
			pods = append(pods, pod)
		}
	}
	want = int(o.Replicas)
	if except >= 0 && except < o.Replicas {
		want--
	}
	return pods, want
}

// Ready returns the number of Pods that are ready and not being deleted.
func (o *Observation) Ready() int32 {
	pods, _ := o.expected(none)
	ready := int32(0)
	for _, pod := range pods {
		if pod.Ready {
			ready++
		}
	}
	return ready
}

// Sampled returns how many of the expected Pods report a valid sample, and how many there
// should be.
func (o *Observation) Sampled() (sampled, want int) { return o.sampled(none) }

func (o *Observation) sampled(except int32) (sampled, want int) {
	pods, want := o.expected(except)
	for _, pod := range pods {
		if pod.Sample.valid() {
			sampled++
		}
	}
	return sampled, want
}

// valid reports whether the node has counted its partitions. A node that has only just
// started reports zeros, and sees no member, not even itself.
func (s *Sample) valid() bool {
	return s != nil && s.Underreplicated != nil && (s.Members == nil || *s.Members > 0)
}

// Underreplicated returns the largest number of partitions with too few owners that a
// node reports, nil without a report of every node.
func (o *Observation) Underreplicated() *int64 { return o.underreplicated(none) }

func (o *Observation) underreplicated(except int32) *int64 {
	if sampled, want := o.sampled(except); sampled < want {
		return nil
	}
	most := int64(0)
	pods, _ := o.expected(except)
	for _, pod := range pods {
		most = max(most, *pod.Sample.Underreplicated)
	}
	return &most
}

func (o *Observation) podName(ordinal int32) string { return fmt.Sprintf("%s-%d", o.Name, ordinal) }
