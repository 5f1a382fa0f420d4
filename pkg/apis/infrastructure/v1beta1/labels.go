// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import "nstance.dev/operator/pkg/identifier"

// Labels and finalizers.
const (
	// LabelGroup is the Nstance group an object stands for.
	LabelGroup = "nstance.dev/group"
	// LabelShard is the shard an object stands for.
	LabelShard = "nstance.dev/shard"

	// FinalizerMachinePool keeps a pool until none of its shard groups is left.
	FinalizerMachinePool = "nstance.dev/machine-pool"
	// LabelPodUID, on a Machine and its NstanceMachine, is the UID of the Pod that
	// they were made for.
	LabelPodUID = "nstance.dev/pod-uid"

	// FinalizerMachine keeps an NstanceMachine until its shard has confirmed that
	// the instance is gone.
	FinalizerMachine = "nstance.dev/machine"
	// FinalizerShardGroup keeps a shard group until its shard has confirmed
	// that the group is gone.
	FinalizerShardGroup = "nstance.dev/shard-group"
)

// Annotations with which a Pod asks for a machine of its own (operator document).
const (
	// AnnotationOnDemandGroup names the group of the machine.
	AnnotationOnDemandGroup = "on-demand.nstance.dev/group"
	// AnnotationOnDemandInstanceType overrides the group's instance type.
	AnnotationOnDemandInstanceType = "on-demand.nstance.dev/instance-type"
)

// Annotations on a Machine and its NstanceMachine that name the Pod that they
// were made for. A Pod's name is too long for a label.
const (
	AnnotationPodNamespace = "nstance.dev/pod-namespace"
	AnnotationPodName      = "nstance.dev/pod-name"
)

// AnnotationCordonedFor marks a Node that the operator has cordoned, with the
// instance whose drain it was for: {shard}/{instance id}. What somebody else has
// cordoned does not have it, and is never uncordoned.
const AnnotationCordonedFor = "nstance.dev/cordoned-for"

// AnnotationTokenExpiry on the kubeconfig Secret tells when its token
// expires, in RFC 3339.
const AnnotationTokenExpiry = "nstance.dev/token-expiry"

// AnnotationKept on a shard group notes that its size is the one that was found
// on the shard, and for which replicas of the pool over which shards it stays.
const AnnotationKept = "nstance.dev/kept-for"

// ShardGroupName is the name of the shard group of group on shard. It is
// unambiguous because no identifier contains two hyphens in a row.
func ShardGroupName(group, shard string) string {
	return group + identifier.Separator + shard
}
