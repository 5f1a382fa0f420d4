// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NstanceMachinePool maps one Nstance group to a Cluster API MachinePool of the
// same name. The MachinePool's replicas are spread over the shards.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nstancemachinepools,scope=Namespaced,shortName=nsmp,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.group`
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.status.desiredReplicas`
// +kubebuilder:printcolumn:name="Actual",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="Draining",type=integer,JSONPath=`.status.draining`
// +kubebuilder:printcolumn:name="Shards",type=integer,JSONPath=`.status.shards.total`
// +kubebuilder:printcolumn:name="Reachable",type=integer,JSONPath=`.status.shards.reachable`
// +kubebuilder:printcolumn:name="Static",type=boolean,JSONPath=`.status.isStatic`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule=`!(has(oldSelf.status) && has(oldSelf.status.isStatic) && oldSelf.status.isStatic) || (has(self.spec.template) ? self.spec.template : "") == (has(oldSelf.spec.template) ? oldSelf.spec.template : "")`,fieldPath=".spec.template",reason="FieldValueForbidden",message="template is set by the server configuration of this static group and cannot be changed"
// +kubebuilder:validation:XValidation:rule="!(has(oldSelf.status) && has(oldSelf.status.isStatic) && oldSelf.status.isStatic) || (has(self.spec.subnets) ? self.spec.subnets : []) == (has(oldSelf.spec.subnets) ? oldSelf.spec.subnets : [])",fieldPath=".spec.subnets",reason="FieldValueForbidden",message="subnets are set by the server configuration of this static group and cannot be changed"
// +kubebuilder:validation:XValidation:rule="!(has(oldSelf.status) && has(oldSelf.status.isStatic) && oldSelf.status.isStatic) || self.spec.shards == oldSelf.spec.shards",fieldPath=".spec.shards",reason="FieldValueForbidden",message="shards are set by the server configuration of this static group and cannot be changed"
type NstanceMachinePool struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NstanceMachinePoolSpec `json:"spec"`
	// +optional
	Status NstanceMachinePoolStatus `json:"status,omitempty"`
}

// NstanceMachinePoolSpec says which group, on which shards, of which machines.
// How many there are is said by the MachinePool.
type NstanceMachinePoolSpec struct {
	// group is the id of the Nstance group. It never changes.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="group is immutable"
	Group Identifier `json:"group"`
	// shards are the shards the group is spread over. Order matters: what does
	// not divide evenly goes to the shards listed first.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(s, self.exists_one(t, s == t))",message="shards must not contain a shard twice"
	Shards []Identifier `json:"shards"`
	// template is the server's template for a group that is not in the server's
	// own configuration; leave it out for one that is.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Template string `json:"template,omitempty"`
	// subnets are ids of subnet pools, tried in this order; when left out the
	// template's are used.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Subnets []Identifier `json:"subnets,omitempty"`
	// instanceType overrides the template's, if the server allows it.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	InstanceType string `json:"instanceType,omitempty"`
	// vars are merged over the template's vars.
	// +optional
	Vars map[string]string `json:"vars,omitempty"`
	// machines says whether each instance of the pool gets a Machine, so that
	// single instances can be deleted, be it by the cluster autoscaler or a
	// MachineHealthCheck. Auto means: when the MachinePool has the annotations with
	// which the cluster autoscaler is told its minimum and maximum size.
	// +optional
	// +kubebuilder:default=Auto
	Machines MachinesMode `json:"machines,omitempty"`
	// providerIDList are the provider ids of the pool's instances, sorted. The
	// operator writes it; Cluster API reads it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	ProviderIDList []string `json:"providerIDList,omitempty"`
}

// Identifier is an id that Nstance shares with every provider: lower case
// letters, digits and single hyphens, at most 32 characters.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
// +kubebuilder:validation:XValidation:rule="!self.contains('--')",message="must not contain consecutive hyphens"
type Identifier string

// MachinesMode says whether the instances of a pool have Machines.
//
// +kubebuilder:validation:Enum=Auto;Always;Never
type MachinesMode string

// Modes of a pool's Machines.
const (
	MachinesAuto   MachinesMode = "Auto"
	MachinesAlways MachinesMode = "Always"
	MachinesNever  MachinesMode = "Never"
)

// NstanceMachinePoolStatus is what the shards of the pool report, added up.
type NstanceMachinePoolStatus struct {
	// ready becomes true when all shard groups were ready for the first time and
	// then stays true: Cluster API stops copying ids and replicas when it falls
	// back. The condition Ready tells the present.
	// +optional
	Ready *bool `json:"ready,omitempty"`
	// initialization holds the mark of the CAPI contract that equals ready.
	// +optional
	Initialization NstanceMachinePoolInitialization `json:"initialization,omitempty"`
	// desiredReplicas is the number of instances asked of the shards.
	// +optional
	DesiredReplicas *int32 `json:"desiredReplicas,omitempty"`
	// replicas is the number of instances that the shards run.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// draining is the number of instances that are being drained.
	// +optional
	Draining *int32 `json:"draining,omitempty"`
	// drainsBlocked is how many of those do not get on; the shard groups say why.
	// +optional
	DrainsBlocked *int32 `json:"drainsBlocked,omitempty"`
	// shards tells how many shards the pool has and how many are connected.
	// +optional
	Shards ShardsSummary `json:"shards,omitempty"`
	// isStatic is true when any shard has the group in its own configuration;
	// then template, subnets and shards must not be changed.
	// +optional
	IsStatic *bool `json:"isStatic,omitempty"`
	// template is the template in force on the shards.
	// +optional
	Template string `json:"template,omitempty"`
	// subnets are the subnet pools in force on the shards.
	// +optional
	// +listType=atomic
	Subnets []string `json:"subnets,omitempty"`
	// infrastructureMachineKind is NstanceMachine when the instances of the pool
	// have Machines (CAPI contract), and else left out.
	// +optional
	InfrastructureMachineKind string `json:"infrastructureMachineKind,omitempty"`
	// capacity is that of a Node of the pool, as far as the shards know it before
	// there is one. The cluster autoscaler reads it to scale from zero.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// nodeInfo tells what runs on a Node of the pool.
	// +optional
	NodeInfo NodeInfo `json:"nodeInfo,omitempty"`
	// observedGeneration is the generation this status was computed from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions tell the present state: Ready, ShardsReachable, MachinesEnabled,
	// Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`
}

// NstanceMachinePoolInitialization holds the mark that CAPI waits for once.
type NstanceMachinePoolInitialization struct {
	// provisioned is true once the pool was ready for the first time.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// NodeInfo is what the cluster autoscaler reads of a Node that there is not yet.
type NodeInfo struct {
	// architecture is as GOARCH names it.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Architecture string `json:"architecture,omitempty"`
	// operatingSystem is as GOOS names it.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	OperatingSystem string `json:"operatingSystem,omitempty"`
}

// ShardsSummary counts the shards of a pool.
type ShardsSummary struct {
	// total is the number of shards that the spec names.
	// +optional
	Total int32 `json:"total"`
	// reachable is the number of those that are connected.
	// +optional
	Reachable int32 `json:"reachable"`
}

// NstanceMachinePoolList is a list of pools.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type NstanceMachinePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NstanceMachinePool `json:"items"`
}
