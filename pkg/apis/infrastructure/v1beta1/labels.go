// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import "nstance.dev/operator/pkg/base/identifier"

// Labels and finalizers.
const (
	// LabelGroup is the Nstance group of an object.
	LabelGroup = "nstance.dev/group"
	// LabelShard is the shard of an object.
	LabelShard = "nstance.dev/shard"

	// LabelPodUID, on a Machine and its NstanceMachine, is the UID of the Pod that
	// requested them.
	LabelPodUID = "nstance.dev/pod-uid"

	// FinalizerMachinePool keeps a pool until all of its shard groups are deleted.
	FinalizerMachinePool = "nstance.dev/machine-pool"
	// FinalizerMachine keeps an NstanceMachine until its shard has confirmed that the
	// instance no longer exists, or the instance is retained.
	FinalizerMachine = "nstance.dev/machine"
	// FinalizerShardGroup keeps a shard group until its shard has confirmed that the
	// group no longer exists, or the group is retained.
	FinalizerShardGroup = "nstance.dev/shard-group"
)

// Annotations with which a Pod requests a machine of its own (docs/on-demand.md).
const (
	// AnnotationOnDemandGroup names the group of the machine.
	AnnotationOnDemandGroup = "on-demand.nstance.dev/group"
	// AnnotationOnDemandInstanceType overrides the instance type of the group.
	AnnotationOnDemandInstanceType = "on-demand.nstance.dev/instance-type"
	// AnnotationOnDemandDrainTimeout overrides how long the drain of the machine may take,
	// as a duration; 0 is without limit.
	AnnotationOnDemandDrainTimeout = "on-demand.nstance.dev/drain-timeout"
	// AnnotationOnDemandCluster is the name of the NstanceCluster whose operator serves the
	// Pod, {cluster id}--{tenant}. Without it every operator with the group serves the Pod.
	AnnotationOnDemandCluster = "on-demand.nstance.dev/cluster"
)

// Annotations on a Machine and its NstanceMachine that name the Pod that requested
// them. The name of a Pod may be too long for a label.
const (
	AnnotationPodNamespace = "nstance.dev/pod-namespace"
	AnnotationPodName      = "nstance.dev/pod-name"
)

// AnnotationCordonedFor is on a Node that the operator has cordoned and names the drained
// instance: {shard}/{instance id}. A Node that another client has cordoned does not have the
// annotation, and the operator does not uncordon it.
const AnnotationCordonedFor = "nstance.dev/cordoned-for"

// Annotations on a Node with AnnotationCordonedFor that repeat the deletion notice of the
// shard for people and programs that read the Node. The notice precedes them.
const (
	// AnnotationDrainReason is the shard's reason to delete the instance
	// (docs/protocol.md#drains).
	AnnotationDrainReason = "nstance.dev/drain-reason"
	// AnnotationDeleteAt is the time at which the shard deletes the instance, drained or not,
	// by the clock of the shard, in RFC 3339. A drain without a limit does not have it.
	AnnotationDeleteAt = "nstance.dev/delete-at"
)

// Annotations on an NstanceMachine that repeat its status, so that the instance is found
// again after a restore without the status (docs/runbooks/backup-and-restore.md#backup-and-restore). The
// status precedes them.
const (
	// AnnotationRequest is the create request of the instance: {shard}/{request id}.
	AnnotationRequest = "nstance.dev/request"
	// AnnotationInstanceID is the id of the instance on that shard.
	AnnotationInstanceID = "nstance.dev/instance-id"
)

// AnnotationTokenExpiry is on the kubeconfig Secret: the time at which its token
// expires, in RFC 3339.
const AnnotationTokenExpiry = "nstance.dev/token-expiry"

// Annotations on the Secret with the operator's client certificate, which show that the
// operator got it for itself and renews it.
const (
	// AnnotationCertificateIssued is when the operator received the certificate, in RFC
	// 3339.
	AnnotationCertificateIssued = "nstance.dev/certificate-issued"
	// AnnotationRegisteredWith is the SHA-256 digest of the nonce that the operator
	// registered with, in hexadecimal digits. A nonce is used once.
	AnnotationRegisteredWith = "nstance.dev/registered-with"
)

// AnnotationKept is on a shard group whose size was imported from the shard, and says
// for which replicas of the pool and which shards it does not change.
const AnnotationKept = "nstance.dev/kept-for"

// AnnotationLent is on a shard group whose size differs from its share of the replicas,
// because a shard had no capacity. It says how many instances the shard has lent to others,
// less than 0 if it has borrowed them, of which replicas and among which shards
// (docs/runbooks/a-zone-without-stock.md#a-zone-without-stock).
const AnnotationLent = "nstance.dev/lent"

// AnnotationReplaces is on a shard group that is older than the group on its shard, as
// after a restore of etcd: an administrator sets it to the revision that the condition
// Ready names, {uid}/{generation}, or for a group that was deleted to the uid of the
// shard group. The operator then sends the shard group all the same. The annotation has
// no effect on any other revision (docs/runbooks/backup-and-restore.md#backup-and-restore).
const AnnotationReplaces = "nstance.dev/replaces-revision"

// AnnotationAbandonedShard is on a shard group or an NstanceMachine that is being deleted
// although its shard is not configured any more, because the shard is lost: an
// administrator sets it to the value that the condition Ready names, {shard}/{number of
// instances} or {shard}/{instance id}. The object is then deleted without a confirmation of
// the shard, and its instances are given up (docs/runbooks/a-shard-that-is-lost.md#a-shard-that-is-lost).
const AnnotationAbandonedShard = "nstance.dev/abandoned-shard"

// AnnotationConfirmedAddress is the beginning of annotations of the ConfigMap
// nstance-shards; the rest is the id of a shard. An administrator confirms with such an
// annotation that the server at an address, the value, serves the shard although its
// certificate names no shard and it reports no known instance. The annotation has no effect
// while the shard has another address (docs/certificates.md#servers-that-name-no-shard).
const AnnotationConfirmedAddress = "nstance.dev/confirmed-address."

// ShardGroupName is the name of the shard group of group on shard. It is
// unambiguous because no identifier contains two hyphens in a row.
func ShardGroupName(group, shard string) string {
	return group + identifier.Separator + shard
}
