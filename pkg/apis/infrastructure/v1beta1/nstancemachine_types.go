// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NstanceMachine is one instance that belongs to a Cluster API Machine.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nstancemachines,scope=Namespaced,shortName=nsm,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.groupRef.name`
// +kubebuilder:printcolumn:name="Shard",type=string,JSONPath=`.status.shard`
// +kubebuilder:printcolumn:name="InstanceID",type=string,JSONPath=`.status.instanceID`
// +kubebuilder:printcolumn:name="ProviderID",type=string,JSONPath=`.spec.providerID`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NstanceMachine struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NstanceMachineSpec `json:"spec"`
	// +optional
	Status NstanceMachineStatus `json:"status,omitempty"`
}

// NstanceMachineSpec says of which group the instance is. Apart from providerID
// it never changes: the instance was made of it.
//
// +kubebuilder:validation:XValidation:rule="has(self.shard) == has(oldSelf.shard) && (!has(self.shard) || self.shard == oldSelf.shard)",message="shard is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.instanceType) == has(oldSelf.instanceType) && (!has(self.instanceType) || self.instanceType == oldSelf.instanceType)",message="instanceType is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.vars) == has(oldSelf.vars) && (!has(self.vars) || self.vars == oldSelf.vars)",message="vars is immutable"
type NstanceMachineSpec struct {
	// groupRef names the Nstance group whose template the instance has.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="groupRef is immutable"
	GroupRef GroupReference `json:"groupRef"`
	// shard is where to make the instance; when left out the operator chooses.
	// +optional
	Shard Identifier `json:"shard,omitempty"`
	// instanceType overrides the group's.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	InstanceType string `json:"instanceType,omitempty"`
	// vars are merged over the group's vars.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Vars map[string]string `json:"vars,omitempty"`
	// providerID is the provider id of the instance. The operator writes it;
	// Cluster API reads it.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`
}

// GroupReference names an Nstance group.
type GroupReference struct {
	// name is the id of the group.
	// +required
	Name Identifier `json:"name"`
}

// NstanceMachineStatus is what the shard reports of the instance.
type NstanceMachineStatus struct {
	// instanceID is the id that the shard gave the instance.
	// +optional
	InstanceID string `json:"instanceID,omitempty"`
	// shard is where the instance is, or is going to be made: it is written
	// before the instance is asked for.
	// +optional
	Shard string `json:"shard,omitempty"`
	// requestID is the key under which the instance is asked for, written before
	// that. Asked for again under it, the shard answers with the same instance.
	// +optional
	RequestID string `json:"requestID,omitempty"`
	// providerID is the provider id of the instance.
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// ready is true while the instance runs.
	// +optional
	Ready *bool `json:"ready,omitempty"`
	// initialization holds the mark that Cluster API waits for once.
	// +optional
	Initialization NstanceMachineInitialization `json:"initialization,omitempty"`
	// addresses are the addresses of the instance.
	// +optional
	// +listType=atomic
	Addresses []MachineAddress `json:"addresses,omitempty"`
	// observedGeneration is the generation of the spec that the status is of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions tell the present state: Ready, InstanceCreated, ServerDeleted,
	// DrainsProgressing, Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`
}

// NstanceMachineInitialization holds the mark that CAPI waits for once.
type NstanceMachineInitialization struct {
	// provisioned is true once the instance runs.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// MachineAddress is one address of an instance.
type MachineAddress struct {
	// type is the kind of address, as CAPI names them.
	// +required
	// +kubebuilder:validation:Enum=Hostname;ExternalIP;InternalIP;ExternalDNS;InternalDNS
	Type string `json:"type"`
	// address is the address itself.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Address string `json:"address"`
}

// NstanceMachineList is a list of machines.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type NstanceMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NstanceMachine `json:"items"`
}
