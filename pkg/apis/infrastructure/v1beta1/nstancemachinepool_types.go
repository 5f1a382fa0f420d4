// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NstanceMachinePool is an Nstance group on several shards. Its replicas are set by
// the MachinePool of the same name and spread over the shards.
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
// +kubebuilder:validation:XValidation:rule=`!(has(oldSelf.status) && has(oldSelf.status.isStatic) && oldSelf.status.isStatic) || !has(self.spec.template) || self.spec.template == (has(oldSelf.spec.template) ? oldSelf.spec.template : "")`,fieldPath=".spec.template",reason="FieldValueForbidden",message="template is set by the server configuration of this static group and can only be removed"
// +kubebuilder:validation:XValidation:rule="!(has(oldSelf.status) && has(oldSelf.status.isStatic) && oldSelf.status.isStatic) || !has(self.spec.subnets) || self.spec.subnets == (has(oldSelf.spec.subnets) ? oldSelf.spec.subnets : [])",fieldPath=".spec.subnets",reason="FieldValueForbidden",message="subnets are set by the server configuration of this static group and can only be removed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.staticShards) || oldSelf.status.staticShards.all(s, !(s in oldSelf.spec.shards) || s in self.spec.shards)",fieldPath=".spec.shards",reason="FieldValueForbidden",message="a shard that has this static group in its server configuration (status.staticShards) cannot be removed"
type NstanceMachinePool struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NstanceMachinePoolSpec `json:"spec"`
	// +optional
	Status NstanceMachinePoolStatus `json:"status,omitempty"`
}

// MaxReplicas is the largest number of instances of a pool. It is the limit of
// spec.providerIDList, and of spec.size and spec.removeFirst of a shard group.
const MaxReplicas = 10000

// NstanceMachinePoolSpec is the configuration of a group and its shards. The MachinePool
// sets the number of instances.
type NstanceMachinePoolSpec struct {
	// group is the id of the Nstance group. It never changes.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="group is immutable"
	Group Identifier `json:"group"`
	// shards are the shards that the group is spread over. If the replicas do not
	// divide evenly, the shards that are listed first get one more.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(s, self.exists_one(t, s == t))",message="shards must not contain a shard twice"
	Shards []Identifier `json:"shards"`

	GroupSettings `json:",inline"`

	// machines is whether each instance of the pool gets a Machine, so that the cluster
	// autoscaler or a MachineHealthCheck can delete single instances. Auto creates
	// Machines if the MachinePool has the annotations for the minimum and maximum size
	// of the cluster autoscaler.
	// +optional
	// +kubebuilder:default=Auto
	Machines MachinesMode `json:"machines,omitempty"`
	// scaleDown are guards for scale-downs. Without guards a scale-down removes all
	// surplus instances at once.
	// +optional
	ScaleDown *ScaleDownGuards `json:"scaleDown,omitempty"`
	// deletionPolicy is what happens to the groups and instances on the shards when the
	// pool is deleted. Delete deletes them. Retain leaves them unchanged; a later pool of
	// the same group imports them.
	// +optional
	// +kubebuilder:default=Delete
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
	// onShortfall is what happens when a shard reports that its provider has no capacity
	// or quota for instances of the pool. Wait: its size stays until it has created them.
	// Move: the other shards run them instead.
	// +optional
	// +kubebuilder:default=Wait
	OnShortfall ShortfallPolicy `json:"onShortfall,omitempty"`
	// shortfallAfter is how long a shard has to report that before its missing instances
	// move, and the shortest time between two moves.
	// +optional
	// +kubebuilder:default="5m"
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be greater than 0"
	ShortfallAfter *metav1.Duration `json:"shortfallAfter,omitempty"`
	// providerIDList are the provider ids of the instances of the pool, sorted. The
	// operator sets it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	ProviderIDList []string `json:"providerIDList,omitempty"`
}

// Identifier is an id that is valid for every provider: lower case letters, digits and
// single hyphens, at most 32 characters.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
// +kubebuilder:validation:XValidation:rule="!self.contains('--')",message="must not contain consecutive hyphens"
type Identifier string

// MachinesMode is whether the instances of a pool have Machines.
//
// +kubebuilder:validation:Enum=Auto;Always;Never
type MachinesMode string

// Modes of a pool's Machines.
const (
	MachinesAuto   MachinesMode = "Auto"
	MachinesAlways MachinesMode = "Always"
	MachinesNever  MachinesMode = "Never"
)

// ShortfallPolicy is what happens to instances that a shard cannot create.
//
// +kubebuilder:validation:Enum=Wait;Move
type ShortfallPolicy string

// Policies for a shortfall.
const (
	ShortfallWait ShortfallPolicy = "Wait"
	ShortfallMove ShortfallPolicy = "Move"
)

// NstanceMachinePoolStatus is the sum of what the shards of the pool report.
type NstanceMachinePoolStatus struct {
	// ready becomes true when a shard reports the first instance, or when all shards have
	// reported and no instance is desired. It stays true, because Cluster API stops
	// copying provider ids and replicas if it becomes false. The current state is the
	// condition Ready.
	// +optional
	Ready *bool `json:"ready,omitempty"`
	// initialization contains the field that Cluster API waits for once.
	// +optional
	Initialization NstanceMachinePoolInitialization `json:"initialization,omitempty"`
	// desiredReplicas is the number of instances that the shards are to run.
	// +optional
	DesiredReplicas *int32 `json:"desiredReplicas,omitempty"`
	// replicas is the number of running instances.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// draining is the number of instances that are being drained.
	// +optional
	Draining *int32 `json:"draining,omitempty"`
	// drainsBlocked is the number of blocked drains; the shard groups have the reasons.
	// +optional
	DrainsBlocked *int32 `json:"drainsBlocked,omitempty"`
	// shards is the number of shards of the pool and of connected shards.
	// +optional
	Shards ShardsSummary `json:"shards,omitempty"`
	// isStatic is true if the group is in the server configuration of any shard. Then
	// template and subnets can only be removed.
	// +optional
	IsStatic *bool `json:"isStatic,omitempty"`
	// staticShards are the configured shards that have the group in their server
	// configuration. They cannot be removed from spec.shards.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	StaticShards []Identifier `json:"staticShards,omitempty"`
	// template is the template in force on the shards.
	// +optional
	Template string `json:"template,omitempty"`
	// subnets are the subnet pools in force on the shards.
	// +optional
	// +listType=atomic
	Subnets []string `json:"subnets,omitempty"`
	// infrastructureMachineKind is NstanceMachine while the instances of the pool have
	// Machines, and not set otherwise.
	// +optional
	InfrastructureMachineKind string `json:"infrastructureMachineKind,omitempty"`
	// capacity is the capacity of a Node of the pool, as far as the shards know it. The
	// cluster autoscaler needs it to scale up from zero.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// nodeInfo is the platform of a Node of the pool.
	// +optional
	NodeInfo NodeInfo `json:"nodeInfo,omitempty"`
	// observedGeneration is the generation that the status was computed from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions are the current conditions: Ready, ShardsReachable, MachinesEnabled,
	// ScalingDown, Shortfall, Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NstanceMachinePoolInitialization contains the field that Cluster API waits for once.
type NstanceMachinePoolInitialization struct {
	// provisioned is equal to ready.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// NodeInfo describes Nodes for the cluster autoscaler before the first one exists.
type NodeInfo struct {
	// architecture is the CPU architecture, a value of GOARCH.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Architecture string `json:"architecture,omitempty"`
	// operatingSystem is the operating system, a value of GOOS.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	OperatingSystem string `json:"operatingSystem,omitempty"`
}

// ShardsSummary counts the shards of a pool.
type ShardsSummary struct {
	// total is the number of shards in the spec.
	// +optional
	Total int32 `json:"total"`
	// reachable is the number of connected shards.
	// +optional
	Reachable int32 `json:"reachable"`
}

// NstanceMachinePoolList is a list of NstanceMachinePools.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type NstanceMachinePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NstanceMachinePool `json:"items"`
}
