// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import (
	"slices"

	"nstance.dev/operator/pkg/apis/marekvs/v1alpha1"
)

// Rollout is the next step of an update of the Pods.
type Rollout struct {
	// Partition is the lowest ordinal to update.
	Partition int32
	// Done is true when every Pod has the present revision.
	Done bool
	// Halted is true when an updated Pod fails.
	Halted bool
	// Waiting is why the next Pod is not updated yet, nil if it is updated now.
	Waiting *Block
	// Replace has the ordinals of Pods that do not work and have a former revision. They are
	// deleted while OnDelete is true.
	Replace []int32
	// OnDelete is true while the StatefulSet controller must update no Pod by itself, and create
	// Pods from the present revision whatever their ordinals: a partition allows that only for the
	// highest ordinals.
	OnDelete bool
}

// NextRollout returns the next step of an update. A change of the template updates no Pod
// by itself: Pods that do not work are replaced at once, whatever their ordinals. Pods that work
// are updated one at a time, the highest ordinal first, and each only when the others have every
// copy.
func NextRollout(o *Observation) Rollout {
	partition := o.UpdatesFrom()
	wait := func(reason *Block) Rollout { return Rollout{Partition: partition, Waiting: reason} }
	switch {
	case !o.TemplateCurrent:
		return Rollout{Partition: o.Replicas, Waiting: block(v1alpha1.ReasonRollingOut, "the template has changed")}
	case !o.Current:
		observing := wait(block(v1alpha1.ReasonNotObserved, "the StatefulSet controller has not observed the template"))
		observing.OnDelete = o.OnDelete
		return observing
	case o.CurrentRevision == o.UpdateRevision && len(o.outdated()) == 0:
		return Rollout{Done: true, Partition: o.Replicas}
	}
	for partition > 0 && o.updated(partition-1) {
		partition-- // Pods that were replaced need no update
	}
	if broken := o.broken(); len(broken) > 0 || o.OnDelete && o.replacing() {
		replacing := wait(block(v1alpha1.ReasonRollingOut, "pod %s is being replaced, because it does not work", o.podName(o.unfinished())))
		replacing.Replace, replacing.OnDelete = broken, true
		return replacing
	}
	if pod := o.failing(); pod != nil {
		halted := wait(block(v1alpha1.ReasonRolloutHalted, "the updated pod %s fails: %s", o.podName(pod.Ordinal), pod.Failing))
		halted.Halted = true
		return halted
	}
	next := partition - 1
	switch {
	case o.updated(0) && o.Ready() == o.Replicas:
		// A Pod below the partition gets the current revision, so the partition is 0 until that is
		// the update revision.
		return Rollout{Done: true}
	case next < 0, !o.updated(partition):
		return wait(block(v1alpha1.ReasonRollingOut, "pod %s is being updated", o.podName(o.unfinished())))
	}
	if o.deleting(next) {
		return wait(block(v1alpha1.ReasonReplacing, "the volume claim of pod %s is being deleted, and its volume would be deleted with the pod", o.podName(next)))
	}
	// The update may repair a Pod that is not ready, so its own state is ignored.
	except := none
	if !o.ready(next) {
		except = ordinals{next: true}
	}
	if blocked := o.checkCopies(except); blocked != nil {
		return wait(blocked)
	}
	return Rollout{Partition: next}
}

// UpdatesFrom returns the lowest ordinal that the StatefulSet controller updates by itself, which is the size if it
// updates none.
func (o *Observation) UpdatesFrom() int32 {
	if o.OnDelete {
		return o.Replicas
	}
	return min(o.Partition, o.Replicas)
}

// outdated returns the Pods of the present size that have another revision than the update revision.
func (o *Observation) outdated() []Pod {
	pods, _ := o.expected(none)
	return slices.DeleteFunc(pods, func(pod Pod) bool { return pod.Revision == o.UpdateRevision })
}

// broken returns the ordinals of the Pods of a former revision that do not work: their container never
// started, or fails. The update may repair them, and cannot make them worse, unless their volumes would be deleted
// with them. While an updated Pod fails, they are left alone, unless no Pod of a former revision works either.
func (o *Observation) broken() []int32 {
	var broken []int32
	works := false
	for _, pod := range o.outdated() {
		switch {
		case pod.Ready:
			works = true
		case o.deleting(pod.Ordinal):
		case pod.NeverRan, pod.Failing != "":
			broken = append(broken, pod.Ordinal)
		}
	}
	if works && o.failing() != nil {
		return nil
	}
	slices.Sort(broken)
	return broken
}

// replacing reports whether a Pod that was deleted has not been created again.
func (o *Observation) replacing() bool {
	present := ordinals{}
	for _, pod := range o.Pods {
		if pod.Terminating && pod.Ordinal < o.Replicas && pod.Revision != o.UpdateRevision {
			return true
		}
		present[pod.Ordinal] = true
	}
	for ordinal := range o.Replicas {
		if !present[ordinal] {
			return true
		}
	}
	return false
}

// unfinished returns the highest ordinal whose Pod is missing, not ready or not updated, 0 if there is
// none.
func (o *Observation) unfinished() int32 {
	finished := ordinals{}
	pods, _ := o.expected(none)
	for _, pod := range pods {
		finished[pod.Ordinal] = pod.Ready && pod.Revision == o.UpdateRevision
	}
	for ordinal := o.Replicas - 1; ordinal > 0; ordinal-- {
		if !finished[ordinal] {
			return ordinal
		}
	}
	return 0
}

// updated reports whether every expected Pod with at least the ordinal from exists and has
// the update revision.
func (o *Observation) updated(from int32) bool {
	pods, _ := o.expected(none)
	updated := int32(0)
	for _, pod := range pods {
		if pod.Ordinal >= from && pod.Revision == o.UpdateRevision {
			updated++
		}
	}
	return updated >= o.Replicas-from
}

// rolling reports whether some Pods are updated and others are not.
func (o *Observation) rolling() bool {
	pods, _ := o.expected(none)
	updated := 0
	for _, pod := range pods {
		if pod.Revision == o.UpdateRevision {
			updated++
		}
	}
	return updated > 0 && updated < len(pods)
}

// Updated returns how many Pods have the present revision and are ready.
func (o *Observation) Updated() int32 {
	updated := int32(0)
	pods, _ := o.expected(none)
	for _, pod := range pods {
		if pod.Ready && pod.Revision == o.UpdateRevision {
			updated++
		}
	}
	return updated
}

// failing returns an updated Pod that fails, nil if no Pod fails.
func (o *Observation) failing() *Pod {
	for i, pod := range o.Pods {
		if pod.Revision == o.UpdateRevision && !pod.Terminating && !pod.Ready && pod.Failing != "" {
			return &o.Pods[i]
		}
	}
	return nil
}

func (o *Observation) ready(ordinal int32) bool {
	for _, pod := range o.Pods {
		if pod.Ordinal == ordinal && !pod.Terminating {
			return pod.Ready
		}
	}
	return false
}
