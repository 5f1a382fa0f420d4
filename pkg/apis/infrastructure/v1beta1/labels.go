// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import "nstance.dev/operator/pkg/base/identifier"

// The marker +metadata of a constant says on which objects the key is, who writes it, and
// whether it is stable or internal (docs/api.md#stability). docs/api.md has all of them in a
// table.

// Labels and finalizers.
const (
	// LabelGroup is the Nstance group of an object.
	// +metadata:on=shard groups; NstanceMachines; Machines; Nodes,writer=operator; userdata on Nodes,stable
	LabelGroup = "nstance.dev/group"
	// LabelShard is the shard of an object.
	// +metadata:on=shard groups; NstanceMachines; Machines; Nodes,writer=operator; userdata on Nodes,stable
	LabelShard = "nstance.dev/shard"

	// LabelOperator is on the namespace of an operator, so that the policies of other operators do not
	// warn of its pools (docs/install.md#install).
	// +metadata:on=Namespaces,writer=user,stable
	LabelOperator = "nstance.dev/operator"

	// LabelPodUID is the UID of the Pod that requested a Machine and its NstanceMachine.
	// +metadata:on=Machines; NstanceMachines,writer=operator,internal
	LabelPodUID = "nstance.dev/pod-uid"

	// FinalizerMachinePool keeps a pool until all of its shard groups are deleted.
	// +metadata:on=pools,writer=operator,stable
	FinalizerMachinePool = "nstance.dev/machine-pool"
	// FinalizerMachine keeps an NstanceMachine until its shard has confirmed that the
	// instance no longer exists, or the instance is retained.
	// +metadata:on=NstanceMachines,writer=operator,stable
	FinalizerMachine = "nstance.dev/machine"
	// FinalizerShardGroup keeps a shard group until its shard has confirmed that the
	// group no longer exists, or the group is retained.
	// +metadata:on=shard groups,writer=operator,stable
	FinalizerShardGroup = "nstance.dev/shard-group"
)

// Annotations with which a Pod requests a machine of its own (docs/on-demand.md).
const (
	// AnnotationOnDemandGroup names the group of the machine.
	// +metadata:on=Pods,writer=user,stable
	AnnotationOnDemandGroup = "on-demand.nstance.dev/group"
	// AnnotationOnDemandInstanceType overrides the instance type of the group.
	// +metadata:on=Pods,writer=user,stable
	AnnotationOnDemandInstanceType = "on-demand.nstance.dev/instance-type"
	// AnnotationOnDemandDrainTimeout overrides how long the drain of the machine may take,
	// as a duration; 0 is without limit.
	// +metadata:on=Pods,writer=user,stable
	AnnotationOnDemandDrainTimeout = "on-demand.nstance.dev/drain-timeout"
	// AnnotationOnDemandCluster is the name of the NstanceCluster whose operator serves the
	// Pod, {cluster id}--{tenant}. Without it every operator with the group serves the Pod.
	// +metadata:on=Pods,writer=user,stable
	AnnotationOnDemandCluster = "on-demand.nstance.dev/cluster"
)

// Annotations on a Machine and its NstanceMachine that name the Pod that requested
// them. The name of a Pod may be too long for a label.
const (
	// AnnotationPodNamespace is the namespace of the Pod.
	// +metadata:on=Machines; NstanceMachines,writer=operator,internal
	AnnotationPodNamespace = "nstance.dev/pod-namespace"
	// AnnotationPodName is the name of the Pod.
	// +metadata:on=Machines; NstanceMachines,writer=operator,internal
	AnnotationPodName = "nstance.dev/pod-name"
)

// AnnotationCordonedFor is on a Node that the operator has cordoned and names the drained
// instance: {shard}/{instance id}. A Node that another client has cordoned does not have the
// annotation, and the operator does not uncordon it.
// +metadata:on=Nodes,writer=operator,stable
const AnnotationCordonedFor = "nstance.dev/cordoned-for"

// AnnotationRemediateInstance is on a Node whose instance is to be replaced, with any value: another
// instance is created first, and then this one is drained and deleted. Removing the annotation cancels a
// replacement that has not begun (docs/reference.md#replace-an-instance).
// +metadata:on=Nodes,writer=user,stable
const AnnotationRemediateInstance = "nstance.dev/remediate-instance"

// AnnotationNodeSettings is on a Node on which the operator has set labels and taints of spec.node of its
// pool, and names them, so that they can be removed.
// +metadata:on=Nodes,writer=operator,internal
const AnnotationNodeSettings = "nstance.dev/node-settings"

// AnnotationScaleDownDisabled is on a Node that the operator protects from the cluster autoscaler, because its
// instance is a replacement, and names the shard group: the operator has set, and will remove,
// cluster-autoscaler.kubernetes.io/scale-down-disabled (docs/cluster-autoscaler.md#what-happens-when).
// +metadata:on=Nodes,writer=operator,internal
const AnnotationScaleDownDisabled = "nstance.dev/scale-down-disabled"

// Annotations on a Node with AnnotationCordonedFor that repeat the deletion notice of the
// shard for people and programs that read the Node. The notice precedes them.
const (
	// AnnotationDrainReason is the shard's reason to delete the instance
	// (docs/protocol.md#drains).
	// +metadata:on=Nodes,writer=operator,stable
	AnnotationDrainReason = "nstance.dev/drain-reason"
	// AnnotationDeleteAt is the time at which the shard deletes the instance, drained or not,
	// by the clock of the shard, in RFC 3339. A drain without a limit does not have it.
	// +metadata:on=Nodes,writer=operator,stable
	AnnotationDeleteAt = "nstance.dev/delete-at"
)

// Annotations on an NstanceMachine that repeat its status, so that the instance is found
// again after a restore without the status (docs/runbooks/backup-and-restore.md#backup-and-restore). The
// status precedes them.
const (
	// AnnotationRequest is the create request of the instance: {shard}/{request id}.
	// +metadata:on=NstanceMachines,writer=operator,stable
	AnnotationRequest = "nstance.dev/request"
	// AnnotationInstanceID is the id of the instance on that shard.
	// +metadata:on=NstanceMachines,writer=operator,stable
	AnnotationInstanceID = "nstance.dev/instance-id"
)

// AnnotationTokenExpiry is on the kubeconfig Secret: the time at which its token
// expires, in RFC 3339.
// +metadata:on=the kubeconfig Secret,writer=operator,internal
const AnnotationTokenExpiry = "nstance.dev/token-expiry"

// Annotations on the Secret with the operator's client certificate, which show that the
// operator got it for itself and renews it.
const (
	// AnnotationCertificateIssued is when the operator received the certificate, in RFC
	// 3339.
	// +metadata:on=the Secret with the certificate,writer=operator,internal
	AnnotationCertificateIssued = "nstance.dev/certificate-issued"
	// AnnotationRegisteredWith is the SHA-256 digest of the nonce that the operator
	// registered with, in hexadecimal digits. A nonce is used once.
	// +metadata:on=the Secret with the certificate,writer=operator,internal
	AnnotationRegisteredWith = "nstance.dev/registered-with"
	// AnnotationReplacesCA is the SHA-256 digest of the CA in the ConfigMap, in hexadecimal
	// digits, that the CA in the Secret replaces. Another CA in the ConfigMap is newer.
	// +metadata:on=the Secret with the certificate,writer=operator,internal
	AnnotationReplacesCA = "nstance.dev/replaces-ca"
	// AnnotationShownCA is the SHA-256 digest of the fingerprints of the CA that the operator trusted
	// when it requested the certificate, in hexadecimal digits. The servers know of no later CA.
	// +metadata:on=the Secret with the certificate,writer=operator,internal
	AnnotationShownCA = "nstance.dev/shown-ca"
)

// Annotations with which an administrator confirms what the operator does not do on its own.
// Each names what is confirmed, so that it has no effect on anything else.
const (
	// AnnotationConfirmDeletion lets an object be deleted whose deletion a policy rejects; the
	// value is the name of the object (docs/reference.md#conditions).
	// +metadata:on=MachinePools; pools; shard groups,writer=administrator,stable
	AnnotationConfirmDeletion = "nstance.dev/confirm-deletion"
	// AnnotationConfirmOverwrite is on a shard group that is older than the group on its
	// shard, as after a restore of etcd. The value is the revision that the condition Ready
	// names, {uid}/{generation}, or for a group that was deleted the uid of the shard group.
	// The operator then sends the shard group all the same
	// (docs/runbooks/backup-and-restore.md#backup-and-restore).
	// +metadata:on=shard groups,writer=administrator,stable
	AnnotationConfirmOverwrite = "nstance.dev/confirm-overwrite"
	// AnnotationConfirmAbandon is on an object that is being deleted although its shard is not
	// configured any more, because the shard is lost. The value is named in the condition
	// Ready: {shard}/{number of instances} or {shard}/{instance id}. The object is then deleted
	// without a confirmation of the shard, and its instances are given up
	// (docs/runbooks/a-shard-that-is-lost.md#a-shard-that-is-lost).
	// +metadata:on=shard groups; NstanceMachines,writer=administrator,stable
	AnnotationConfirmAbandon = "nstance.dev/confirm-abandon"
	// AnnotationConfirmAddress is the beginning of annotations; the rest is the id of a shard.
	// The value is the address at which a server serves the shard although its certificate
	// names no shard and it reports no known instance. The annotation has no effect while the
	// shard has another address (docs/certificates.md#servers-that-name-no-shard).
	// +metadata:on=the ConfigMap nstance-shards,writer=administrator,stable
	AnnotationConfirmAddress = "nstance.dev/confirm-address."
)

// ShardGroupName is the name of the shard group of group on shard. It is
// unambiguous because no identifier contains two hyphens in a row.
func ShardGroupName(group, shard string) string {
	return group + identifier.Separator + shard
}
