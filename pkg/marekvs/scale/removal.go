// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import (
	"maps"
	"strconv"
	"strings"
	"time"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// DefaultDiskPercent is the used share of a volume that a removal must not exceed, if the
// cluster does not set targetDiskPercent.
const DefaultDiskPercent = 80

// Step is the next size of the StatefulSet.
type Step struct {
	// Replicas is the next size; it is the present size if nothing changes.
	Replicas int32
	// Blocked is why a removal waits, nil if no removal waits.
	Blocked *Block
}

// Removal has the preconditions of a removal besides complete copies of the data.
type Removal struct {
	// DiskPercent is the used share of a volume that a removal must not exceed.
	DiskPercent int32
	// Wait is how long the next removal is to wait because of the last change of the size.
	Wait time.Duration
}

// Next returns the next step towards target. It adds all nodes at once, because no copy can
// be lost. It removes one node at a time, and only while every copy exists.
func Next(target int32, o *Observation, removal Removal) Step {
	if target >= o.Replicas {
		return Step{Replicas: target}
	}
	var blocked *Block
	if empty := o.lastEmpty(); len(empty) > 0 {
		// A node that never ran takes nothing with it, whatever keeps it from running. The other
		// nodes have every copy without it, and without nodes whose volumes are lost.
		maps.Copy(empty, o.away())
		blocked = o.checkCopies(empty)
	} else if blocked = o.checkComplete(none); blocked == nil {
		blocked = o.checkRemoval(removal)
	}
	if blocked != nil {
		return Step{Replicas: o.Replicas, Blocked: blocked}
	}
	return Step{Replicas: o.Replicas - 1}
}

// checkComplete returns why the nodes may lose data without any further node, nil if they do not. It ignores
// the ordinals in except.
func (o *Observation) checkComplete(except ordinals) *Block {
	if found := o.checkSingleCopy(); found != nil {
		return found
	}
	for _, check := range []func(ordinals) *Block{o.checkFactors, o.checkCopies, o.checkQuiet} {
		if found := check(except); found != nil {
			return found
		}
	}
	return nil
}

// checkSingleCopy returns a Block if each partition has one copy. A node that is terminated sends
// what it has not sent yet, and hands over no partition (github.com/yannick/marekvs, commit defc648,
// design/06-cluster-membership.md), and no round finds a copy that no other node has.
func (o *Observation) checkSingleCopy() *Block {
	if o.ReplicationFactor > 1 {
		return nil
	}
	return block(v1alpha1.ReasonSingleCopy, "replicationFactor is %d, and no other node has the data of the node to remove; at least 2 is needed", o.ReplicationFactor)
}

// checkFactors returns a Block while a node keeps fewer copies than the cluster is to have. It
// reports no more copies than it keeps.
func (o *Observation) checkFactors(except ordinals) *Block {
	pods, _ := o.expected(except)
	for _, pod := range pods {
		if pod.Factor > 0 && pod.Factor < o.ReplicationFactor {
			return block(v1alpha1.ReasonRollingOut, "pod %s keeps %d of %d copies until it is updated",
				o.podName(pod.Ordinal), pod.Factor, o.ReplicationFactor)
		}
	}
	return nil
}

func (o *Observation) checkRemoval(removal Removal) *Block {
	if o.rolling() {
		return block(v1alpha1.ReasonRollingOut, "pods are being updated")
	}
	if found := o.checkDisk(o.Replicas-1, removal.DiskPercent); found != nil {
		return found
	}
	if removal.Wait > 0 {
		return block(v1alpha1.ReasonStabilizing, "the size changed too recently")
	}
	return nil
}

// rounds returns how many rounds of every node must pass after a change. A node compares
// each partition with one other owner per round, which it chooses at random, and in every third round
// also what it holds and does not own (github.com/yannick/marekvs, commit defc648,
// crates/marekvs-repl/src/lib.rs:1464-1505).
func (o *Observation) rounds() int64 {
	factor := o.ReplicationFactor
	for _, pod := range o.Pods {
		factor = max(factor, pod.Factor)
	}
	return max(3, 2*(int64(factor)-1))
}

// checkCopies returns why the copies of the data may be incomplete, nil if they are complete. It
// ignores the ordinals in except.
//
// The number of partitions with too few owners is not sufficient: the store counts the
// nodes that see each other, so the number returns to 0 before data has moved.
func (o *Observation) checkCopies(except ordinals) *Block {
	for _, check := range []func(ordinals) *Block{o.checkMetrics, o.checkReady, o.checkStatefulSet, o.checkMembers, o.checkRepair} {
		if found := check(except); found != nil {
			return found
		}
	}
	return nil
}

// copies returns how many copies the nodes without some ordinals can have of each partition. Two nodes
// or more that are fewer than the copies have each partition; they report that all partitions have too
// few owners, whatever data they have, and their rounds show whether the copies are equal.
func (o *Observation) copies(except ordinals) int32 {
	if _, left := o.expected(except); len(except) > 0 && left >= 2 {
		return min(o.ReplicationFactor, int32(left))
	}
	return o.ReplicationFactor
}

func (o *Observation) checkMetrics(except ordinals) *Block {
	under := o.underreplicated(except)
	if under == nil {
		sampled, want := o.sampled(except)
		return block(v1alpha1.ReasonMetricsUnavailable, "metrics unreachable (%d of %d pods scraped)", sampled, want)
	}
	if *under > 0 && o.copies(except) == o.ReplicationFactor {
		return block(v1alpha1.ReasonUnderreplicated, "%d partitions under-replicated", *under)
	}
	return nil
}

func (o *Observation) checkReady(except ordinals) *Block {
	pods, want := o.expected(except)
	ready := 0
	for _, pod := range pods {
		if pod.Ready {
			ready++
		}
	}
	if ready < want {
		return block(v1alpha1.ReasonNotAllReady, "%d of %d pods ready", ready, want)
	}
	return nil
}

// checkStatefulSet returns a Block until the last removal is finished: status.readyReplicas
// counts a Pod until it no longer exists.
func (o *Observation) checkStatefulSet(except ordinals) *Block {
	for _, pod := range o.Pods {
		switch {
		case except[pod.Ordinal]:
		case pod.Terminating:
			return block(v1alpha1.ReasonPodTerminating, "pod %s is being deleted", o.podName(pod.Ordinal))
		case pod.Ordinal >= o.Replicas:
			return block(v1alpha1.ReasonNotObserved, "pod %s is to be deleted", o.podName(pod.Ordinal))
		}
	}
	if want := o.Replicas - o.missing(except); !o.Current || o.StatusReplicas != want {
		return block(v1alpha1.ReasonNotObserved, "the StatefulSet controller has created %d of %d pods", o.StatusReplicas, want)
	}
	return nil
}

func (o *Observation) checkMembers(except ordinals) *Block {
	pods, _ := o.expected(except)
	for _, pod := range pods {
		if members := pod.Sample.Members; members != nil && *members != int64(o.Replicas) && len(except) == 0 {
			return block(v1alpha1.ReasonMembersDiffer, "pod %s sees %d of %d nodes", o.podName(pod.Ordinal), *members, o.Replicas)
		}
		// A node reports at most as many copies as it keeps (github.com/yannick/marekvs, commit
		// defc648, crates/marekvs-cluster/src/lib.rs:368-386): before its update, the former factor.
		want := o.copies(except)
		if pod.Factor > 0 {
			want = min(want, pod.Factor)
		}
		if copies := pod.Sample.EffectiveReplicas; copies != nil && *copies < int64(want) {
			return block(v1alpha1.ReasonMembersDiffer, "pod %s sees %d of %d copies of a partition", o.podName(pod.Ordinal), *copies, want)
		}
	}
	return nil
}

func (o *Observation) checkRepair(except ordinals) *Block {
	pods, _ := o.expected(except)
	for _, pod := range pods {
		if joining := pod.Sample.Joining; joining != nil && *joining > 0 {
			return block(v1alpha1.ReasonRepairing, "pod %s is taking over partitions", o.podName(pod.Ordinal))
		}
		if pod.Rounds != nil && *pod.Rounds < o.rounds() {
			return block(v1alpha1.ReasonRepairing, "pod %s has compared its copies %d of %d times since the nodes changed",
				o.podName(pod.Ordinal), *pod.Rounds, o.rounds())
		}
	}
	if o.SinceChange < o.Settle {
		return block(v1alpha1.ReasonSettling, "the nodes changed less than %s ago", o.Settle)
	}
	return nil
}

// checkQuiet returns a Block until copying has ended: a round only begins to copy. An update of a
// Pod does not wait for this, because its volume stays.
func (o *Observation) checkQuiet(except ordinals) *Block {
	pods, _ := o.expected(except)
	for _, pod := range pods {
		if pod.QuietRounds == nil {
			return block(v1alpha1.ReasonMetricsUnavailable, "pod %s does not report how many rounds of repair it has begun and what they repaired", o.podName(pod.Ordinal))
		}
		if *pod.QuietRounds < o.rounds() {
			return block(v1alpha1.ReasonRepairing, "pod %s has compared its copies %d of %d times since data last moved",
				o.podName(pod.Ordinal), *pod.QuietRounds, o.rounds())
		}
	}
	return nil
}

// Volume is a volume claim of the cluster.
type Volume struct {
	// Name is the name of the claim.
	Name string
	// Ordinal is the ordinal of its node.
	Ordinal int32
	// Terminating is true while it is being deleted.
	Terminating bool
}

// VolumeOrdinal returns the ordinal of the node that a claim of a cluster belongs to. It
// rejects names that the StatefulSet controller does not create, such as data-demo-007.
func VolumeOrdinal(cluster, claim string) (int32, bool) {
	text, ok := strings.CutPrefix(claim, "data-"+cluster+"-")
	if !ok {
		return 0, false
	}
	ordinal, err := strconv.ParseInt(text, 10, 32)
	if err != nil || ordinal < 0 || strconv.FormatInt(ordinal, 10) != text {
		return 0, false
	}
	return int32(ordinal), true
}

// Reclaimable returns the volumes of removed nodes that may be deleted. It returns nil
// unless the cluster has its target size, every copy exists without these volumes, no
// Pod of a removed node exists, no volume is lost or being replaced, and the last removal was at least a time ago: what the nodes report
// does not prove that every copy is complete.
func Reclaimable(target int32, o *Observation, after time.Duration, volumes []Volume) []Volume {
	if o.SinceRemoval < after {
		return nil
	}
	if target != o.Replicas || o.rolling() || len(o.Lost) > 0 || o.checkComplete(none) != nil {
		return nil
	}
	var reclaimable []Volume
	for _, volume := range volumes {
		if volume.Ordinal >= o.Replicas && !volume.Terminating {
			reclaimable = append(reclaimable, volume)
		}
	}
	return reclaimable
}

// checkDisk returns a Block if a node is too full to be without the node with an ordinal.
func (o *Observation) checkDisk(without, limit int32) *Block {
	pods, _ := o.expected(none)
	for _, pod := range pods {
		if stopped := pod.Sample.WriteStopped; stopped != nil && *stopped > 0 {
			return block(v1alpha1.ReasonDiskFull, "pod %s has stopped to write, because its volume is full", o.podName(pod.Ordinal))
		}
	}
	if used := o.diskWithout(without); used != nil && *used > float64(limit) {
		return block(v1alpha1.ReasonDiskFull, "a volume would be used to %.0f %%, more than %d %%", *used, limit)
	}
	return nil
}
