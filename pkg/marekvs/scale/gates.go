// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package scale

import "nstance.dev/operator/pkg/apis/marekvs/v1alpha1"

// rounds is how many times each node must have compared its copies after a change of the
// nodes. One such round may have begun before the change.
const rounds = 2

// gate returns why the copies of the data may not be complete, nil if they are. It ignores
// the Pod with the ordinal except.
//
// The number of partitions with too few owners alone is no proof: it counts the nodes that
// see each other, and is 0 again before any data has moved.
func (o *Observation) gate(except int32) *Block {
	for _, check := range []func(int32) *Block{o.checkMetrics, o.checkReady, o.checkStatefulSet, o.checkMembers, o.checkRepair} {
		if found := check(except); found != nil {
			return found
		}
	}
	return nil
}

func (o *Observation) checkMetrics(except int32) *Block {
	under := o.underreplicated(except)
	if under == nil {
		sampled, want := o.sampled(except)
		return block(v1alpha1.ReasonMetricsUnavailable, "metrics unreachable (%d of %d pods scraped)", sampled, want)
	}
	if *under > 0 {
		return block(v1alpha1.ReasonUnderreplicated, "%d partitions under-replicated", *under)
	}
	return nil
}

func (o *Observation) checkReady(except int32) *Block {
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

// checkStatefulSet makes sure that the last removal is over: status.readyReplicas counts a
// Pod that is being deleted until it no longer exists.
func (o *Observation) checkStatefulSet(except int32) *Block {
	for _, pod := range o.Pods {
		switch {
		case pod.Ordinal == except:
		case pod.Terminating:
			return block(v1alpha1.ReasonPodTerminating, "pod %s is being deleted", o.podName(pod.Ordinal))
		case pod.Ordinal >= o.Replicas:
			return block(v1alpha1.ReasonNotObserved, "pod %s is to be deleted", o.podName(pod.Ordinal))
		}
	}
	if !o.Current || o.StatusReplicas != o.Replicas {
		return block(v1alpha1.ReasonNotObserved, "the StatefulSet controller has created %d of %d pods", o.StatusReplicas, o.Replicas)
	}
	return nil
}

func (o *Observation) checkMembers(except int32) *Block {
	pods, _ := o.expected(except)
	for _, pod := range pods {
		if members := pod.Sample.Members; members != nil && *members != int64(o.Replicas) && except == none {
			return block(v1alpha1.ReasonMembersDiffer, "pod %s sees %d of %d nodes", o.podName(pod.Ordinal), *members, o.Replicas)
		}
		if copies := pod.Sample.EffectiveReplicas; copies != nil && *copies < int64(o.ReplicationFactor) {
			return block(v1alpha1.ReasonMembersDiffer, "pod %s sees %d of %d copies of a partition",
				o.podName(pod.Ordinal), *copies, o.ReplicationFactor)
		}
	}
	return nil
}

func (o *Observation) checkRepair(except int32) *Block {
	pods, _ := o.expected(except)
	for _, pod := range pods {
		if joining := pod.Sample.Joining; joining != nil && *joining > 0 {
			return block(v1alpha1.ReasonRepairing, "pod %s is taking over partitions", o.podName(pod.Ordinal))
		}
		if pod.Rounds != nil && *pod.Rounds < rounds {
			return block(v1alpha1.ReasonRepairing, "pod %s has compared its copies %d of %d times since the nodes changed",
				o.podName(pod.Ordinal), max(*pod.Rounds, 0), rounds)
		}
	}
	if o.SinceChange < o.Settle {
		return block(v1alpha1.ReasonSettling, "the nodes changed less than %s ago", o.Settle)
	}
	return nil
}
