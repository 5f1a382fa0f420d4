// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NstanceShardGroup is the part of a pool on one shard. The operator creates one for
// each shard of a pool, named {group}--{shard}, and keeps the group on the shard equal
// to its spec.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nstanceshardgroups,scope=Namespaced,shortName=nssg,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.group`
// +kubebuilder:printcolumn:name="Shard",type=string,JSONPath=`.spec.shard`
// +kubebuilder:printcolumn:name="Size",type=integer,JSONPath=`.spec.size`
// +kubebuilder:printcolumn:name="Actual",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="Draining",type=integer,JSONPath=`.status.draining`
// +kubebuilder:printcolumn:name="Static",type=boolean,JSONPath=`.status.isStatic`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reachable",type=string,JSONPath=`.status.conditions[?(@.type=="ShardReachable")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == self.spec.group + '--' + self.spec.shard",message="metadata.name must be {spec.group}--{spec.shard}"
type NstanceShardGroup struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NstanceShardGroupSpec `json:"spec"`
	// +optional
	Status NstanceShardGroupStatus `json:"status,omitempty"`
}

// NstanceShardGroupSpec is the desired state of the group on this shard.
type NstanceShardGroupSpec struct {
	// group is the id of the Nstance group. It never changes.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="group is immutable"
	Group Identifier `json:"group"`
	// shard is the id of the shard. It never changes.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="shard is immutable"
	Shard Identifier `json:"shard"`
	// size is the desired number of instances on this shard.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Size int32 `json:"size"`

	// The settings are copied from the pool.
	GroupSettings `json:",inline"`

	// removeFirst are the ids of the deletion candidates of a scale-down. The shard
	// deletes them before other instances and does not replace them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	RemoveFirst []string `json:"removeFirst,omitempty"`

	// deletionPolicy is that of the pool if it is Retain, and not set otherwise. A shard
	// group with Retain is deleted without deleting the group on the shard.
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// NstanceShardGroupStatus is what the shard reports about the group.
type NstanceShardGroupStatus struct {
	// observedGeneration is the generation that the status was computed from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// isStatic is true if the group is in the server configuration of the shard.
	// +optional
	IsStatic *bool `json:"isStatic,omitempty"`
	// draining is the number of instances that are being drained.
	// +optional
	Draining *int32 `json:"draining,omitempty"`
	// drainsBlocked is the number of blocked drains; the condition DrainsProgressing has
	// the reason.
	// +optional
	DrainsBlocked *int32 `json:"drainsBlocked,omitempty"`
	// replicas is the number of running instances.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// providerIDs are the provider ids of the running instances, sorted. They do not
	// change while the shard is unreachable.
	// +optional
	// +listType=atomic
	ProviderIDs []string `json:"providerIDs,omitempty"`
	// config is the effective configuration on the server.
	// +optional
	Config *GroupConfig `json:"config,omitempty"`
	// lastSyncTime is the time of the last change that the server reported.
	// +optional
	LastSyncTime *metav1.Time `json:"lastSyncTime,omitempty"`
	// conditions are the current conditions: Ready, ShardReachable, ConfigValid,
	// DrainsProgressing.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
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
