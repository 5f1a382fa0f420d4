// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import "nstance.dev/operator/pkg/apis/marekvs/v1alpha1"

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
}

// NextRollout returns the next step of an update. A change of the template updates no Pod
// by itself: the Pods are updated one at a time, the highest ordinal first, and each only
// when the others have every copy.
func NextRollout(o *Observation) Rollout {
	partition := min(o.Partition, o.Replicas)
	wait := func(reason *Block) Rollout { return Rollout{Partition: partition, Waiting: reason} }
	switch {
	case !o.TemplateCurrent:
		return Rollout{Partition: o.Replicas, Waiting: block(v1alpha1.ReasonRollingOut, "the template has changed")}
	case !o.Current:
		return wait(block(v1alpha1.ReasonNotObserved, "the StatefulSet controller has not observed the template"))
	case o.updated(0):
		return Rollout{Done: true, Partition: o.restingPartition()}
	}
	if pod := o.failing(partition); pod != nil {
		halted := wait(block(v1alpha1.ReasonRolloutHalted, "the updated pod %s fails: %s", o.podName(pod.Ordinal), pod.Failing))
		halted.Halted = true
		return halted
	}
	next := partition - 1
	if !o.updated(partition) || next < 0 {
		return wait(block(v1alpha1.ReasonRollingOut, "pod %s is being updated", o.podName(partition)))
	}
	// The update may repair a Pod that is not ready, so its own state is ignored.
	except := none
	if !o.ready(next) {
		except = next
	}
	if blocked := o.checkCopies(except); blocked != nil {
		return wait(blocked)
	}
	return Rollout{Partition: next}
}

// restingPartition returns the partition of a cluster without an update. It is the size, so that a
// change of the template by someone else, such as kubectl rollout restart, updates no Pod by itself.
// A Pod below the partition gets the current revision, so it is 0 until that is the update revision.
func (o *Observation) restingPartition() int32 {
	if o.CurrentRevision == o.UpdateRevision {
		return o.Replicas
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

// failing returns an updated Pod with at least the ordinal from that fails, nil if no Pod
// fails.
func (o *Observation) failing(from int32) *Pod {
	for i, pod := range o.Pods {
		if pod.Ordinal >= from && pod.Revision == o.UpdateRevision && !pod.Terminating && !pod.Ready && pod.Failing != "" {
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
