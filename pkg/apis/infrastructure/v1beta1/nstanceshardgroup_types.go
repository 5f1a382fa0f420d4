// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NstanceShardGroup is the part of a pool that one shard runs. The operator
// makes one per pool and shard, named {group}--{shard}, and keeps the group on
// that shard's server equal to its spec.
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

// NstanceShardGroupSpec is what the pool asks of this shard.
type NstanceShardGroupSpec struct {
	// group is the id of the Nstance group. It never changes.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="group is immutable"
	Group Identifier `json:"group"`
	// shard is the id of the shard. It never changes.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="shard is immutable"
	Shard Identifier `json:"shard"`
	// size is the number of instances wanted on this shard.
	// +required
	// +kubebuilder:validation:Minimum=0
	Size int32 `json:"size"`
	// template is copied from the pool.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Template string `json:"template,omitempty"`
	// instanceType is copied from the pool.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	InstanceType string `json:"instanceType,omitempty"`
	// subnets are copied from the pool.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Subnets []Identifier `json:"subnets,omitempty"`
	// vars are copied from the pool.
	// +optional
	Vars map[string]string `json:"vars,omitempty"`
	// removeFirst are ids of instances that were chosen to go when size became
	// smaller. They go before others, and are not replaced.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	RemoveFirst []string `json:"removeFirst,omitempty"`
}

// NstanceShardGroupStatus is what the shard reports of the group.
type NstanceShardGroupStatus struct {
	// observedGeneration is the generation this status was computed from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// isStatic is true when the group is in the server's own configuration.
	// +optional
	IsStatic *bool `json:"isStatic,omitempty"`
	// replicas is the number of instances that run.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// draining is the number of instances that are being drained.
	// +optional
	Draining *int32 `json:"draining,omitempty"`
	// drainsBlocked is how many of those do not get on; the condition
	// DrainsProgressing says why.
	// +optional
	DrainsBlocked *int32 `json:"drainsBlocked,omitempty"`
	// providerIDs are the provider ids of those instances, sorted. They stay
	// while the shard cannot be reached.
	// +optional
	// +listType=atomic
	ProviderIDs []string `json:"providerIDs,omitempty"`
	// config is the configuration in force on the server, after merging.
	// +optional
	Config *GroupConfig `json:"config,omitempty"`
	// lastSyncTime is when this status last took something new from the server.
	// +optional
	LastSyncTime *metav1.Time `json:"lastSyncTime,omitempty"`
	// conditions tell the present state: Ready, ShardReachable, ConfigValid,
	// DrainsProgressing.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`
}

// GroupConfig is a group's configuration as a server reports it.
type GroupConfig struct {
	// template is the template in force.
	// +optional
	Template string `json:"template,omitempty"`
	// subnets are the subnet pools in force, in the order they are tried.
	// +optional
	// +listType=atomic
	Subnets []string `json:"subnets,omitempty"`
	// instanceType is the instance type in force.
	// +optional
	InstanceType string `json:"instanceType,omitempty"`
	// vars are the merged vars.
	// +optional
	Vars map[string]string `json:"vars,omitempty"`
}

// NstanceShardGroupList is a list of shard groups.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type NstanceShardGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NstanceShardGroup `json:"items"`
}
