// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import (
	"cmp"
	"slices"
	"time"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// Lost is a node whose volume is lost, or is to be replaced because a user has asked for it.
type Lost struct {
	Ordinal int32
	// Requested is true if a user has asked for the replacement.
	Requested bool
	// Why describes the loss, empty if the volume is not known to be lost. For is how long that has
	// been known.
	Why string
	For time.Duration
	// Begun is true if the StatefulSet says that this volume is being replaced. Deleting is true if its
	// claim is being deleted: the volume is deleted when its Pod ends.
	Begun, Deleting bool
}

// Replacement is the next step of the replacement of a lost volume.
type Replacement struct {
	// Node is the node whose volume is being replaced, nil if no volume is. Its claim and its Pod are
	// deleted if Node.Begun is true and Waiting is nil; otherwise the StatefulSet gets its claim.
	Node *Lost
	// Waiting is why a volume that is lost, or is to be replaced, is not replaced now; nil if there is no
	// such volume, or it is replaced now.
	Waiting *Block
}

// NextReplacement returns the next step of the replacement of lost volumes: on request, of which the deletion of a
// claim is one, or when a volume has been lost for a time, 0 for never. One node is replaced at a time, and only when
// the others have every copy and have stopped to copy, as before a removal. What is not known is no reason to replace
// a node: all gates are those of removals.
func NextReplacement(o *Observation, after time.Duration, diskPercent int32) Replacement {
	var due []Lost
	var early *Block
	for _, node := range o.Lost {
		switch {
		case node.Requested, node.Deleting, after > 0 && node.Why != "" && node.For >= after:
			due = append(due, node)
		case node.Why == "":
		case early != nil:
		case after > 0:
			early = block(v1alpha1.ReasonVolumeLost, "the volume of pod %s is lost: %s; it is replaced when that has been so for %s", o.podName(node.Ordinal), node.Why, after)
		default:
			early = block(v1alpha1.ReasonVolumeLost, "the volume of pod %s is lost: %s; it is replaced on request", o.podName(node.Ordinal), node.Why)
		}
	}
	if len(due) == 0 {
		return Replacement{Waiting: early}
	}
	slices.SortFunc(due, func(a, b Lost) int {
		// A node that works keeps its data until it is replaced, and must not keep nodes from being replaced that
		// do not work: all others must work then. An update waits for a claim that is being deleted.
		return cmp.Or(compareBools(o.ready(a.Ordinal), o.ready(b.Ordinal)), compareBools(b.Deleting, a.Deleting),
			compareBools(b.Begun, a.Begun), cmp.Compare(a.Ordinal, b.Ordinal))
	})
	node := due[0]
	if waiting := o.checkReplacement(&node, diskPercent); waiting != nil {
		waiting.Message = "the volume of pod " + o.podName(node.Ordinal) + " is not replaced yet: " + waiting.Message
		if node.Begun && node.Deleting {
			// Its claim exists until its Pod is deleted.
			return Replacement{Waiting: waiting, Node: &node}
		}
		return Replacement{Waiting: waiting}
	}
	return Replacement{Node: &node}
}

// compareBools returns -1 if only b is true, 1 if only a is true, and else 0.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// checkReplacement returns why a volume must not be deleted now. A node that works is deleted under the
// conditions of a removal. Without a node that does not work, the others must have every copy, and must
// know that it is away: while they count it as a member, they do not make up for its copies.
func (o *Observation) checkReplacement(node *Lost, diskPercent int32) *Block {
	if found := o.checkSingleCopy(); found != nil {
		return found
	}
	if o.ready(node.Ordinal) {
		if found := o.checkComplete(none); found != nil {
			return found
		}
		// An update waits for a claim that is being deleted.
		if o.rolling() && !node.Deleting {
			return block(v1alpha1.ReasonRollingOut, "pods are being updated")
		}
		return o.checkDisk(node.Ordinal, diskPercent)
	}
	away := o.away()
	if len(away) >= int(o.ReplicationFactor) {
		return block(v1alpha1.ReasonTooManyLost, "%d nodes are lost, and a partition has %d copies: the lost volumes may have the last copy of data", len(away), o.ReplicationFactor)
	}
	for _, check := range []func() *Block{
		func() *Block { return o.checkComplete(away) }, func() *Block { return o.checkAway(away) },
	} {
		if found := check(); found != nil {
			return found
		}
	}
	return nil
}

// deleting reports whether the volume claim of a node is being deleted.
func (o *Observation) deleting(ordinal int32) bool {
	return slices.ContainsFunc(o.Lost, func(node Lost) bool { return node.Ordinal == ordinal && node.Deleting })
}

// away returns the ordinals of the nodes that do not work, because their volumes are lost, and of those
// that are to be replaced and do not work.
func (o *Observation) away() ordinals {
	away := ordinals{}
	for _, node := range o.Lost {
		if !o.ready(node.Ordinal) {
			away[node.Ordinal] = true
		}
	}
	return away
}

// checkAway returns a Block unless every other node sees all nodes but those that are away. A node that
// does not report how many nodes it sees proves nothing.
func (o *Observation) checkAway(away ordinals) *Block {
	pods, want := o.expected(away)
	for _, pod := range pods {
		members := pod.Sample.Members
		if members == nil {
			return block(v1alpha1.ReasonMetricsUnavailable, "pod %s does not report how many nodes it sees", o.podName(pod.Ordinal))
		}
		if *members != int64(want) {
			return block(v1alpha1.ReasonMembersDiffer, "pod %s sees %d nodes, and %d are left", o.podName(pod.Ordinal), *members, want)
		}
	}
	return nil
}

// replacingVolume returns the node whose volume the StatefulSet says to be replaced, nil if there is none.
func (o *Observation) replacingVolume() *Lost {
	for i := range o.Lost {
		if o.Lost[i].Begun {
			return &o.Lost[i]
		}
	}
	return nil
}

// replaceVolumes decides about lost volumes. One change at a time: a replacement that has begun keeps
// other nodes from being removed or updated, and it does not begin, nor go on, while these happen.
func (d *Decision) replaceVolumes(o *Observation, after time.Duration, diskPercent int32) {
	d.Replacement = NextReplacement(o, after, diskPercent)
	updating := !d.Rollout.Done && (d.Rollout.Waiting == nil || len(d.Rollout.Replace) > 0 || d.Rollout.OnDelete)
	if begun := o.replacingVolume(); begun != nil {
		because := block(v1alpha1.ReasonReplacing, "the volume of pod %s is being replaced", o.podName(begun.Ordinal))
		if d.Step.Replicas < o.Replicas {
			d.Step = Step{Replicas: o.Replicas, Blocked: because}
		}
		if updating && len(d.Rollout.Replace) == 0 && !d.Rollout.OnDelete {
			d.Rollout = Rollout{Partition: o.UpdatesFrom(), Waiting: because}
			updating = false
		}
	}
	if d.Replacement.Node == nil || d.Replacement.Waiting != nil {
		return
	}
	reason := ""
	switch {
	case d.Step.Replicas != o.Replicas:
		reason = "the size changes first"
	case updating:
		reason = "pods are being updated"
	default:
		return
	}
	node := d.Replacement.Node
	d.Replacement = Replacement{Waiting: block(v1alpha1.ReasonReplacing, "the volume of pod %s is not replaced yet: %s", o.podName(node.Ordinal), reason)}
	if node.Begun && node.Deleting {
		d.Replacement.Node = node
	}
}
