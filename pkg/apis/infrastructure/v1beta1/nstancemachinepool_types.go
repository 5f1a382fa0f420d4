// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NstanceMachinePool is an Nstance group on several shards. Its replicas are set by
// the MachinePool of the same name and spread over the shards.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nstancemachinepools,scope=Namespaced,shortName=nsmp;nstmp,categories=cluster-api;nstance
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=infrastructure-nstance"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.group`
// +kubebuilder:printcolumn:name="Desired",type=integer,JSONPath=`.status.desiredReplicas`
// +kubebuilder:printcolumn:name="Actual",type=integer,JSONPath=`.status.replicas`
// +kubebuilder:printcolumn:name="Draining",type=integer,JSONPath=`.status.drainingReplicas`
// +kubebuilder:printcolumn:name="Shards",type=integer,JSONPath=`.status.shards.total`
// +kubebuilder:printcolumn:name="Reachable",type=integer,JSONPath=`.status.shards.reachable`
// +kubebuilder:printcolumn:name="Static",type=boolean,JSONPath=`.status.isStatic`,priority=1
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule=`!(has(oldSelf.status) && has(oldSelf.status.isStatic) && oldSelf.status.isStatic) || !has(self.spec.template) || self.spec.template == (has(oldSelf.spec.template) ? oldSelf.spec.template : "")`,fieldPath=".spec.template",reason="FieldValueForbidden",message="template is set by the server configuration of this static group and can only be removed"
// +kubebuilder:validation:XValidation:rule="!(has(oldSelf.status) && has(oldSelf.status.isStatic) && oldSelf.status.isStatic) || !has(self.spec.subnets) || self.spec.subnets == (has(oldSelf.spec.subnets) ? oldSelf.spec.subnets : [])",fieldPath=".spec.subnets",reason="FieldValueForbidden",message="subnets are set by the server configuration of this static group and can only be removed"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.status) || !has(oldSelf.status.staticShards) || oldSelf.status.staticShards.all(s, !(s in oldSelf.spec.shards) || s in self.spec.shards)",fieldPath=".spec.shards",reason="FieldValueForbidden",message="a shard that has this static group in its server configuration (status.staticShards) cannot be removed"
type NstanceMachinePool struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the metadata of the object.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the configuration of a group and its shards. The MachinePool sets the number of
	// instances.
	// +required
	Spec NstanceMachinePoolSpec `json:"spec,omitzero"`
	// status is the sum of what the shards of the pool report.
	// +optional
	Status NstanceMachinePoolStatus `json:"status,omitempty,omitzero"`
}

// MaxReplicas is the largest number of instances of a pool. It is the limit of
// spec.providerIDList, and of spec.size and spec.removeFirst of a shard group.
const MaxReplicas = 10000

// NstanceMachinePoolSpec is the configuration of a group and its shards. The MachinePool
// sets the number of instances.
//
// +kubebuilder:validation:XValidation:rule="!has(self.candidates) || !has(self.instanceType)",message="instanceType cannot be set together with candidates: a candidate has its own"
// +kubebuilder:validation:XValidation:rule="has(self.candidates) || !has(self.returnAfterSeconds)",message="returnAfterSeconds needs candidates"
type NstanceMachinePoolSpec struct {
	// group is the id of the Nstance group. It never changes.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="group is immutable"
	Group Identifier `json:"group,omitempty"`
	// shards are the shards that the group is spread over. If the replicas do not
	// divide evenly, the shards that are listed first get one instance more.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(s, self.exists_one(t, s == t))",message="shards must not contain a shard twice"
	Shards []Identifier `json:"shards,omitempty"`

	GroupSettings `json:",inline"`

	// candidates are what the instances may be, the best first: each instance is of the first
	// candidate that is below its maximum and that the provider can create. All have the
	// architecture of the template. Adding, reordering or another maximum replaces no instance;
	// removing a candidate replaces its instances.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(c, self.exists_one(d, d.name == c.name))",message="candidates must not contain a name twice"
	// +kubebuilder:validation:XValidation:rule="!has(self[self.size() - 1].maxReplicas)",message="the last candidate must not have maxReplicas, because each instance must be of a candidate"
	Candidates []Candidate `json:"candidates,omitempty"`
	// machineMode decides whether each instance of the pool gets a Machine, so that the
	// cluster autoscaler or a MachineHealthCheck can delete single instances. Auto, which an
	// unset field means, creates Machines if the MachinePool has the annotations for the
	// minimum and maximum size of the cluster autoscaler.
	// +optional
	MachineMode MachineMode `json:"machineMode,omitempty"`
	// scaleDown are guards for scale-downs. Without guards a scale-down removes all
	// surplus instances at once.
	// +optional
	ScaleDown *ScaleDownGuards `json:"scaleDown,omitempty"`
	// rotation decides how outdated instances are replaced. Without it each shard replaces one
	// instance at a time, at any time, with one instance above its size.
	// +optional
	Rotation *RotationPolicy `json:"rotation,omitempty"`
	// remediation replaces the instances of unhealthy Nodes. Without it only the health that the
	// instances report to their shards counts.
	// +optional
	Remediation *RemediationPolicy `json:"remediation,omitempty"`
	// deletionPolicy decides about the groups and instances on the shards when the pool is
	// deleted. Delete, which an unset field means, deletes them. Retain leaves them unchanged;
	// a later pool of the same group imports them.
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
	// shortfall is what happens when a shard reports that its provider has no capacity or
	// quota for instances of the pool. An unset field means the policy Wait.
	// +optional
	Shortfall *ShortfallSettings `json:"shortfall,omitempty"`
	// providerIDList are the provider ids of the instances of the pool, sorted. The
	// operator sets it.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=512
	ProviderIDList []string `json:"providerIDList,omitempty"`
}

// MachineMode decides whether the instances of a pool have Machines.
//
// +kubebuilder:validation:Enum=Auto;Always;Never
type MachineMode string

// Modes of a pool's Machines.
const (
	MachineModeAuto   MachineMode = "Auto"
	MachineModeAlways MachineMode = "Always"
	MachineModeNever  MachineMode = "Never"
)

// ShortfallSettings decide what happens to instances that a shard cannot create
// (docs/runbooks/a-zone-without-stock.md#a-zone-without-stock).
//
// +kubebuilder:validation:MinProperties=1
type ShortfallSettings struct {
	// policy is Wait or Move. Wait, which an unset field means: the size of the shard stays
	// until it has created the instances. Move: the other shards run them instead.
	// +optional
	Policy ShortfallPolicy `json:"policy,omitempty"`
	// afterSeconds is how long a shard has to report a shortfall before its missing instances
	// move, and the shortest time between two moves, in seconds. An unset field means 300.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	AfterSeconds int32 `json:"afterSeconds,omitempty"`
}

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
//
// +kubebuilder:validation:MinProperties=1
type NstanceMachinePoolStatus struct {
	// conditions are the current conditions: Ready, ShardsReachable, ScalingUp, ScalingDown,
	// RollingOut, Remediating, PreferredInstances, CapacityAvailable, NodesJoined, MachinesEnabled, Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ready becomes true when a shard reports the first instance, or when all shards have
	// reported and no instance is desired. It stays true, because Cluster API stops
	// copying provider ids and replicas if it becomes false. The current state is the
	// condition Ready.
	// +optional
	Ready *bool `json:"ready,omitempty"`
	// initialization contains the field that Cluster API waits for once.
	// +optional
	Initialization NstanceMachinePoolInitialization `json:"initialization,omitempty,omitzero"`
	// desiredReplicas is the number of instances that the shards are to run.
	// +optional
	DesiredReplicas *int32 `json:"desiredReplicas,omitempty"`
	// replicas is the number of running instances.
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// drainingReplicas is the number of instances that are being drained.
	// +optional
	DrainingReplicas *int32 `json:"drainingReplicas,omitempty"`
	// blockedReplicas is the number of instances whose drain is blocked; the shard groups
	// have the reasons.
	// +optional
	BlockedReplicas *int32 `json:"blockedReplicas,omitempty"`
	// shards is the number of shards of the pool and of connected shards.
	// +optional
	Shards ShardsSummary `json:"shards,omitempty,omitzero"`
	// isStatic is true if the group is in the server configuration of any shard. Then
	// template and subnets can only be removed.
	// +optional
	IsStatic *bool `json:"isStatic,omitempty"`
	// minReplicas is the smallest number of replicas of a static pool: the sum of the sizes
	// that its shards guarantee. The MachinePool cannot be scaled below.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinReplicas *int32 `json:"minReplicas,omitempty"`
	// staticShards are the configured shards that have the group in their server
	// configuration. They cannot be removed from spec.shards.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	StaticShards []Identifier `json:"staticShards,omitempty"`
	// template is the template in force on the shards. It is not set if they differ.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Template string `json:"template,omitempty"`
	// subnets are the subnet pools in force on the shards. They are not set if the shards
	// differ.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	Subnets []string `json:"subnets,omitempty"`
	// infrastructureMachineKind is NstanceMachine while the instances of the pool have
	// Machines, and not set otherwise.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	InfrastructureMachineKind string `json:"infrastructureMachineKind,omitempty"`
	// capacity is the capacity of a Node of the pool, as far as the shards know it. The
	// cluster autoscaler needs it to scale up from zero.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// nodeInfo is the platform of a Node of the pool.
	// +optional
	NodeInfo NodeInfo `json:"nodeInfo,omitempty,omitzero"`
	// observedGeneration is the generation that the status was computed from.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// NstanceMachinePoolInitialization contains the field that Cluster API waits for once.
//
// +kubebuilder:validation:MinProperties=1
type NstanceMachinePoolInitialization struct {
	// provisioned is equal to ready.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// MaxNodeInfoLength is the longest architecture and operating system, in characters. A longer
// value of a server is left out.
const MaxNodeInfoLength = 63

// NodeInfo describes Nodes for the cluster autoscaler before the first Node exists.
//
// +kubebuilder:validation:MinProperties=1
type NodeInfo struct {
	// architecture is the CPU architecture, a value of GOARCH.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Architecture string `json:"architecture,omitempty"`
	// operatingSystem is the operating system, a value of GOOS.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	OperatingSystem string `json:"operatingSystem,omitempty"`
}

// ShardsSummary counts the shards of a pool.
//
// +kubebuilder:validation:MinProperties=1
type ShardsSummary struct {
	// total is the number of shards in the spec.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Total *int32 `json:"total,omitempty"`
	// reachable is the number of connected shards.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Reachable *int32 `json:"reachable,omitempty"`
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

// ScaleDownGuards limit the scale-downs of a pool: instances are removed in steps, and a
// step is made only while every guard allows it. Deletion candidates and instances that do
// not run yet pass every guard (docs/reference.md#guards-for-scale-down).
//
// +kubebuilder:validation:MinProperties=1
type ScaleDownGuards struct {
	// maxInFlight is the number of instances of the pool that may be removed at once, as a number
	// or as a percentage of its instances, which is rounded down and is at least 1. An
	// instance that is being drained or terminated counts until its shard no longer
	// reports it. Without a value there is no limit.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 : self.matches('^([1-9][0-9]?|100)%$')",message="must be a number from 1 on, or a percentage from 1% to 100%"
	MaxInFlight *intstr.IntOrString `json:"maxInFlight,omitempty"`
	// minReadySeconds is the time for which the Node of every remaining instance must have
	// been Ready before a step, in seconds. A Node that cannot be found is not ready. 0 and an
	// unset field mean that no Node has to be Ready.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	MinReadySeconds *int32 `json:"minReadySeconds,omitempty"`
	// stabilizationSeconds is the time for which the replicas must have been at or below a
	// number before the pool is scaled down to it, in seconds. The time starts again with a
	// new leader of the operator. 0 and an unset field mean at once.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	StabilizationSeconds *int32 `json:"stabilizationSeconds,omitempty"`
	// pauseWhile are states of the pool in which no step is made. An unset field or an empty
	// list is no state.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=3
	PauseWhile []PoolState `json:"pauseWhile,omitempty"`
}

// PoolState is a state of a pool, for guards that wait until it is over.
//
// +kubebuilder:validation:Enum=ShardUnreachable;DrainBlocked;InstanceNotReady
type PoolState string

// States of a pool.
const (
	// PauseWhileShardUnreachable: a shard of the pool is not connected.
	PauseWhileShardUnreachable PoolState = "ShardUnreachable"
	// PauseWhileDrainBlocked: the drain of an instance of the pool is blocked.
	PauseWhileDrainBlocked PoolState = "DrainBlocked"
	// PauseWhileInstanceNotReady: the Node of a remaining instance is not Ready or cannot
	// be found.
	PauseWhileInstanceNotReady PoolState = "InstanceNotReady"
)

// DeletionPolicy decides about the groups and instances of a pool that is deleted.
//
// +kubebuilder:validation:Enum=Delete;Retain
type DeletionPolicy string

// Deletion policies.
const (
	// DeletionDelete deletes groups and instances.
	DeletionDelete DeletionPolicy = "Delete"
	// DeletionRetain leaves groups and instances as they are.
	DeletionRetain DeletionPolicy = "Retain"
)
