// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NstanceShardGroup is the part of a pool on one shard. The operator creates one for
// each shard of a pool, named {group}--{shard}, and keeps the group on the shard equal
// to its spec.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nstanceshardgroups,scope=Namespaced,shortName=nssg;nstsg,categories=cluster-api;nstance
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=infrastructure-nstance"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.group`
// +kubebuilder:printcolumn:name="Shard",type=string,JSONPath=`.spec.shard`
// +kubebuilder:printcolumn:name="Size",type=integer,JSONPath=`.spec.size`
// +kubebuilder:printcolumn:name="Actual",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="Draining",type=integer,JSONPath=`.status.drainingReplicas`
// +kubebuilder:printcolumn:name="Static",type=boolean,JSONPath=`.status.isStatic`,priority=1
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="InstanceType",type=string,JSONPath=`.status.config.instanceType`,priority=1
// +kubebuilder:printcolumn:name="Reachable",type=string,JSONPath=`.status.conditions[?(@.type=="ShardReachable")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == self.spec.group + '--' + self.spec.shard",message="metadata.name must be {spec.group}--{spec.shard}"
type NstanceShardGroup struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the metadata of the object.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the desired state of the group on this shard.
	// +required
	Spec NstanceShardGroupSpec `json:"spec,omitzero"`
	// status is the state of the group that the shard reports, and the state of its drains.
	// +optional
	Status NstanceShardGroupStatus `json:"status,omitempty,omitzero"`
}

// NstanceShardGroupSpec is the desired state of the group on this shard.
type NstanceShardGroupSpec struct {
	// group is the id of the Nstance group. It never changes.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="group is immutable"
	Group Identifier `json:"group,omitempty"`
	// shard is the id of the shard. It never changes.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="shard is immutable"
	Shard Identifier `json:"shard,omitempty"`
	// size is the desired number of instances on this shard.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Size int32 `json:"size"`

	// The settings are copied from the pool.
	GroupSettings `json:",inline"`

	// candidates are the candidates of the pool, with the shares of this shard.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Candidates []ShardCandidate `json:"candidates,omitempty"`

	// removeFirst are the ids of the deletion candidates of a scale-down. The shard
	// deletes them before other instances and does not replace them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	RemoveFirst []string `json:"removeFirst,omitempty"`

	// rotation is how far the shard may replace outdated instances now. It is set if the pool has a
	// policy for its rotation.
	// +optional
	Rotation *RotationGrant `json:"rotation,omitempty"`

	// replace are the ids of the instances that the shard is to replace whatever rotation allows, because
	// users have annotated their Nodes, or spec.remediation of the pool requests it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Replace []string `json:"replace,omitempty"`

	// deletionPolicy is the policy of the pool if it is Retain, and not set otherwise. A shard
	// group with Retain is deleted without deleting the group on the shard.
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// imported is set if the size was imported from the shard. While the pool has these
	// replicas on these shards, the operator does not divide them evenly.
	// +optional
	Imported *Division `json:"imported,omitempty"`
	// loan is set if the size differs from the share of the shard, because a shard has no
	// capacity. It has no effect while the pool has other replicas or other shards
	// (docs/runbooks/a-zone-without-stock.md#a-zone-without-stock).
	// +optional
	Loan *Loan `json:"loan,omitempty"`
	// overwrites is the revision of the group on the shard that this shard group replaces
	// although it is older, as after a restore of etcd, because the replicas were changed
	// since (docs/runbooks/backup-and-restore.md#backup-and-restore).
	// +optional
	Overwrites *GroupRevision `json:"overwrites,omitempty"`
}

// Division names the replicas of a pool and the shards that they are divided among.
type Division struct {
	// replicas is the number of instances of the pool.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Replicas int32 `json:"replicas"`
	// shards are the shards of the pool, in its order.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Shards []Identifier `json:"shards,omitempty"`
}

// String returns the division as people read it, such as "9 over a,b,c".
func (d Division) String() string {
	shards := make([]string, len(d.Shards))
	for i, shard := range d.Shards {
		shards[i] = string(shard)
	}
	return fmt.Sprintf("%d over %s", d.Replicas, strings.Join(shards, ","))
}

// Loan is the difference between the share of a shard and its size.
type Loan struct {
	// lent is how many instances other shards run for this shard. It is less than 0 if this
	// shard runs instances for others, and never 0.
	// +required
	// +kubebuilder:validation:Minimum=-10000
	// +kubebuilder:validation:Maximum=10000
	Lent int32 `json:"lent"`
	// The replicas and shards between which the shares were computed.
	Division `json:",inline"`
}

// String returns the loan as people read it, such as "3 of 9 over a,b,c".
func (l Loan) String() string { return fmt.Sprintf("%d of %s", l.Lent, l.Division) }

// GroupRevision is the revision of a group on a shard: the shard group that it was last
// written from (docs/protocol.md#groups).
type GroupRevision struct {
	// uid is the UID of the shard group.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	UID string `json:"uid,omitempty"`
	// generation is the generation of the shard group.
	// +required
	// +kubebuilder:validation:Minimum=1
	Generation int64 `json:"generation,omitempty"`
}

// NstanceShardGroupStatus is the state of the group that the shard reports, and the state of
// its drains.
//
// +kubebuilder:validation:MinProperties=1
type NstanceShardGroupStatus struct {
	// conditions are the current conditions: Ready, ShardReachable, ConfigValid,
	// DrainsProgressing, Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// observedGeneration is the generation that the status was computed from.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// isStatic is true if the group is in the server configuration of the shard.
	// +optional
	IsStatic *bool `json:"isStatic,omitempty"`
	// minReplicas is the smallest size that the server configuration of the shard allows: a
	// static group guarantees it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinReplicas *int32 `json:"minReplicas,omitempty"`
	// drainingReplicas is the number of instances that are being drained.
	// +optional
	DrainingReplicas *int32 `json:"drainingReplicas,omitempty"`
	// blockedReplicas is the number of instances whose drain is blocked, also if blockedDrains
	// does not list all of them.
	// +optional
	BlockedReplicas *int32 `json:"blockedReplicas,omitempty"`
	// blockedDrains are the drains that have been blocked for the longest time, at most 20,
	// with the reason of each. The message of the condition DrainsProgressing is written
	// from them.
	// +optional
	// +listType=map
	// +listMapKey=instance
	// +kubebuilder:validation:MaxItems=20
	BlockedDrains []BlockedDrain `json:"blockedDrains,omitempty"`
	// replicas is the number of running instances.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// providerIDs are the provider ids of the running instances, sorted. They do not
	// change while the shard is unreachable.
	// +optional
	// +listType=atomic
	ProviderIDs []string `json:"providerIDs,omitempty"`
	// deletionOrder lists the running instances in the order in which the shard deletes
	// surplus instances, at most 100. It is empty if the shard does not report the order.
	// removeFirst of the spec goes before this order.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	DeletionOrder []NextDeletion `json:"deletionOrder,omitempty"`
	// candidates are the candidates that the shard reports, with their numbers of instances. It is
	// empty without candidates.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Candidates []CandidateUse `json:"candidates,omitempty"`
	// config is the effective configuration on the server.
	// +optional
	Config *GroupConfig `json:"config,omitempty"`
	// lastSyncTime is the time of the last change that the server reported.
	// +optional
	LastSyncTime *metav1.Time `json:"lastSyncTime,omitempty"`
}

// Limits of status.deletionOrder of a shard group. The API server rejects the whole status if
// one of them is exceeded.
const (
	// MaxDeletionOrder is the largest number of entries.
	MaxDeletionOrder = 100
	// MaxNextDeletionID is the longest instance id of an entry, in characters.
	MaxNextDeletionID = 253
	// MaxNextDeletionProviderID is the longest provider id of an entry, in characters.
	MaxNextDeletionProviderID = 512
	// MaxNextDeletionReason is the longest reason of an entry, in characters.
	MaxNextDeletionReason = 64
)

// NextDeletion is an instance that is being deleted, or that the shard would delete if the group
// had a smaller size.
type NextDeletion struct {
	// instance is the id of the instance on the shard.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Instance string `json:"instance,omitempty"`
	// providerID is the provider id of the instance.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`
	// reason is why the instance is being deleted, or is to be replaced, such as config-drift.
	// It is not set if only the size decides.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`
}

// Limits of status.blockedDrains of a shard group. The API server rejects the whole status if
// one of them is exceeded.
const (
	// MaxBlockedDrains is the largest number of entries.
	MaxBlockedDrains = 20
	// MaxBlockedDrainInstance is the longest instance id of an entry, in characters.
	MaxBlockedDrainInstance = 253
	// MaxBlockedDrainBudgets is the largest number of PodDisruptionBudgets of an entry.
	MaxBlockedDrainBudgets = 8
	// MaxBlockedDrainMessage is the longest message of an entry, in characters.
	MaxBlockedDrainMessage = 1024
)

// BlockedDrain is a drain that does not progress, and the reason.
type BlockedDrain struct {
	// instance is the id of the instance on the shard.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Instance string `json:"instance,omitempty"`
	// node is the name of the Node. It is not set if the Node is not known, or if several
	// Nodes have the provider id of the instance.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`
	// pod is the Pod that blocks the drain. It is not set if the reason is not about a Pod.
	// +optional
	Pod *BlockingPod `json:"pod,omitempty"`
	// podDisruptionBudgets are the names of the PodDisruptionBudgets that select the Pod,
	// sorted, at most 8.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=253
	PodDisruptionBudgets []string `json:"podDisruptionBudgets,omitempty"`
	// reason is PodNotEvictable, PodNotTerminating, RequestsFailing, AmbiguousProviderID,
	// NodeOfOtherShard or ProviderIDMismatch.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[A-Z][A-Za-z]*$`
	Reason string `json:"reason,omitempty"`
	// message describes the reason in a sentence for people. Programs read the other fields.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// since is the time since which the reason has blocked the drain. It changes only with
	// the reason, the Node or the Pod, and when the operator starts.
	// +required
	Since metav1.Time `json:"since,omitempty,omitzero"`
	// otherReasons is the number of further reasons, such as other Pods of the Node.
	// +optional
	// +kubebuilder:validation:Minimum=1
	OtherReasons int32 `json:"otherReasons,omitempty"`
}

// BlockingPod names a Pod that blocks a drain.
type BlockingPod struct {
	// namespace is the namespace of the Pod.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// name is the name of the Pod.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// NstanceShardGroupList is a list of NstanceShardGroups.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type NstanceShardGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NstanceShardGroup `json:"items"`
}
