// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package scale decides the number of nodes of a marekvs cluster, and what may be changed
// now without losing data. It is pure: it has no client, no clock and no log.
package scale

import (
	"fmt"
	"time"
)

// Sample has the state that a node reports. A nil field means that the metric is missing or
// its value is invalid.
type Sample struct {
	// Underreplicated is the number of partitions with too few owners.
	Underreplicated *int64
	// Members is the number of nodes that the node sees, itself included. It is 0 until
	// the node has refreshed it for the first time.
	Members *int64
	// EffectiveReplicas is the lowest number of copies of a partition.
	EffectiveReplicas *int64
	// Joining is more than 0 while the node takes over partitions after it joined.
	Joining *int64
	// DiskTotal and DiskAvailable are sizes of its volume, in bytes.
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
	// Failing is why the container does not start, empty if it starts.
	Failing string
	// NeverRan is true if the container has not started yet: the node is no member.
	NeverRan bool
	// Factor is the number of copies that the node was started with, 0 if that is not known.
	Factor int32
	// Sample is nil if the node does not report its metrics.
	Sample *Sample
	// Rounds is how many times the node has compared its copies with other nodes since the
	// nodes last changed; nil if it does not report this.
	Rounds *int64
	// QuietRounds is the part of Rounds since copies last moved between any nodes; nil if the node
	// does not report this.
	QuietRounds *int64
}

// Observation is the observed state of a cluster. It has plain values only, so that
// decisions are pure functions.
type Observation struct {
	// Name is the name of the StatefulSet.
	Name string
	// ReplicationFactor is the number of copies of each partition.
	ReplicationFactor int32
	// Replicas is spec.replicas of the StatefulSet, StatusReplicas the number of its Pods
	// in the status.
	Replicas, StatusReplicas int32
	// Current is true when the StatefulSet controller has observed the present spec.
	Current bool
	// Pods has all Pods of the StatefulSet, including Pods that are being deleted.
	Pods []Pod
	// Empty has the ordinals of nodes without data: they never ran with their volume.
	Empty map[int32]bool
	// Lost has the nodes whose volumes are lost or are to be replaced, by ordinal.
	Lost []Lost

	// TemplateCurrent is true when the StatefulSet has the wanted template.
	TemplateCurrent bool
	// Partition is the lowest ordinal that is updated to UpdateRevision
	// (https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#partitions).
	Partition int32
	// OnDelete is true if the StatefulSet controller updates no Pod by itself, and a Pod that it
	// creates gets UpdateRevision whatever its ordinal
	// (https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#update-strategies).
	OnDelete bool
	// CurrentRevision and UpdateRevision are equal when every Pod was updated.
	CurrentRevision, UpdateRevision string

	// SinceChange is how long the nodes have been unchanged.
	SinceChange time.Duration
	// Settle is how long the nodes must be unchanged before a removal.
	Settle time.Duration
	// SinceRemoval is how long ago a node was last removed, or the StatefulSet created.
	SinceRemoval time.Duration
}

// Block is the reason why a removal or an update has to wait, and a message for users.
type Block struct {
	Reason, Message string
}

func block(reason, format string, args ...any) *Block {
	return &Block{Reason: reason, Message: fmt.Sprintf(format, args...)}
}

// ordinals is a set of ordinals.
type ordinals map[int32]bool

// none is the empty set: no Pod is ignored.
var none ordinals

// expected returns the Pods of the present size that are not being deleted, and their
// expected number. It ignores the ordinals in except.
func (o *Observation) expected(except ordinals) (pods []Pod, want int) {
	for _, pod := range o.Pods {
		if pod.Ordinal < o.Replicas && !except[pod.Ordinal] && !pod.Terminating {
			pods = append(pods, pod)
		}
	}
	want = int(o.Replicas)
	for ordinal := range except {
		if ordinal < o.Replicas {
			want--
		}
	}
	return pods, want
}

// missing returns how many of the ordinals in except have no Pod.
func (o *Observation) missing(except ordinals) int32 {
	missing := int32(len(except))
	for _, pod := range o.Pods {
		if except[pod.Ordinal] {
			missing--
		}
	}
	return missing
}

// lastEmpty returns the ordinals of the last nodes, down to the first node with data.
func (o *Observation) lastEmpty() ordinals {
	empty := ordinals{}
	for ordinal := o.Replicas - 1; ordinal >= 0 && o.Empty[ordinal]; ordinal-- {
		empty[ordinal] = true
	}
	return empty
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

// Sampled returns how many of the expected Pods report a valid sample, and how many Pods
// are expected.
func (o *Observation) Sampled() (sampled, want int) { return o.sampled(none) }

// EveryNodeSampled reports whether every node that may have data reports a valid sample.
func (o *Observation) EveryNodeSampled() bool {
	sampled, want := o.sampled(o.Empty)
	return sampled >= want
}

func (o *Observation) sampled(except ordinals) (sampled, want int) {
	pods, want := o.expected(except)
	for _, pod := range pods {
		if pod.Sample.valid() {
			sampled++
		}
	}
	return sampled, want
}

// valid reports whether the node has counted its partitions. A node that has just started
// reports 0 for everything, including the number of members.
func (s *Sample) valid() bool {
	return s != nil && s.Underreplicated != nil && (s.Members == nil || *s.Members > 0)
}

// Underreplicated returns the largest reported number of partitions with too few owners,
// nil unless every node reports it.
func (o *Observation) Underreplicated() *int64 { return o.underreplicated(none) }

func (o *Observation) underreplicated(except ordinals) *int64 {
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

// disk returns the used and total bytes of the volume of a node.
func (s *Sample) disk() (used, total float64, ok bool) {
	if s == nil || s.DiskTotal == nil || s.DiskAvailable == nil || *s.DiskTotal <= 0 || *s.DiskAvailable > *s.DiskTotal {
		return 0, 0, false
	}
	return *s.DiskTotal - *s.DiskAvailable, *s.DiskTotal, true
}

// DiskUsed returns the used share of the fullest volume in percent, nil if no node reports
// it.
func (o *Observation) DiskUsed() *float64 {
	var most *float64
	pods, _ := o.expected(none)
	for _, pod := range pods {
		if used, total, ok := pod.Sample.disk(); ok {
			share := 100 * used / total
			if most == nil || share > *most {
				most = &share
			}
		}
	}
	return most
}

// WriteStopped returns how many nodes have stopped to write, because their volumes are full.
func (o *Observation) WriteStopped() int {
	stopped := 0
	pods, _ := o.expected(none)
	for _, pod := range pods {
		if pod.Sample != nil && pod.Sample.WriteStopped != nil && *pod.Sample.WriteStopped > 0 {
			stopped++
		}
	}
	return stopped
}

// DiskAfterRemoval returns the used share of the fullest volume in percent after the last
// node is removed and the other nodes share its data evenly. It returns nil unless every
// node reports its volume.
func (o *Observation) DiskAfterRemoval() *float64 { return o.diskWithout(o.Replicas - 1) }

// diskWithout returns the same for the node with an ordinal.
func (o *Observation) diskWithout(ordinal int32) *float64 {
	pods, want := o.expected(none)
	if len(pods) < want || want < 2 {
		return nil
	}
	var removed, most float64
	for _, pod := range pods {
		if pod.Ordinal == ordinal {
			used, _, ok := pod.Sample.disk()
			if !ok {
				return nil
			}
			removed = used
		}
	}
	for _, pod := range pods {
		if pod.Ordinal == ordinal {
			continue
		}
		used, total, ok := pod.Sample.disk()
		if !ok {
			return nil
		}
		most = max(most, 100*(used+removed/float64(want-1))/total)
	}
	return &most
}
