// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NstanceMachine is an instance that belongs to a Cluster API Machine.
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

// NstanceMachineSpec is the request for an instance. Only providerID can be changed,
// because the instance is created from the other fields.
//
// +kubebuilder:validation:XValidation:rule="has(self.shard) == has(oldSelf.shard) && (!has(self.shard) || self.shard == oldSelf.shard)",message="shard is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.instanceType) == has(oldSelf.instanceType) && (!has(self.instanceType) || self.instanceType == oldSelf.instanceType)",message="instanceType is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.vars) == has(oldSelf.vars) && (!has(self.vars) || self.vars == oldSelf.vars)",message="vars is immutable"
type NstanceMachineSpec struct {
	// groupRef is the Nstance group whose template is used.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="groupRef is immutable"
	GroupRef GroupReference `json:"groupRef"`
	// shard is the shard of the instance. If it is not set, the operator selects a shard.
	// +optional
	Shard Identifier `json:"shard,omitempty"`
	// instanceType overrides the instance type of the group.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	InstanceType string `json:"instanceType,omitempty"`
	// vars are added to the vars of the group and override them.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Vars map[string]string `json:"vars,omitempty"`
	// providerID is the provider id of the instance. The operator sets it.
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

// NstanceMachineStatus is the state of the instance that the shard reports.
type NstanceMachineStatus struct {
	// instanceID is the id of the instance on its shard.
	// +optional
	InstanceID string `json:"instanceID,omitempty"`
	// shard is the shard of the instance. It is set before the create request is sent.
	// +optional
	Shard string `json:"shard,omitempty"`
	// requestID is the idempotency key of the create request. It is set before the
	// request is sent; a repeated request with the same key returns the same instance.
	// +optional
	RequestID string `json:"requestID,omitempty"`
	// providerID is the provider id of the instance.
	// +optional
	ProviderID string `json:"providerID,omitempty"`
	// ready is true while the instance is running.
	// +optional
	Ready *bool `json:"ready,omitempty"`
	// initialization contains the field that Cluster API waits for once.
	// +optional
	Initialization NstanceMachineInitialization `json:"initialization,omitempty"`
	// addresses are the addresses of the instance.
	// +optional
	// +listType=atomic
	Addresses []MachineAddress `json:"addresses,omitempty"`
	// observedGeneration is the generation that the status was computed from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// conditions are the current conditions: Ready, InstanceCreated, ServerDeleted,
	// DrainsProgressing, Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NstanceMachineInitialization contains the field that Cluster API waits for once.
type NstanceMachineInitialization struct {
	// provisioned is true once the instance is running.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
}

// MachineAddress is an address of an instance.
type MachineAddress struct {
	// type is the type of the address.
	// +required
	// +kubebuilder:validation:Enum=Hostname;ExternalIP;InternalIP;ExternalDNS;InternalDNS
	Type string `json:"type"`
	// address is a host name or an IP address.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Address string `json:"address"`
}

// NstanceMachineList is a list of NstanceMachines.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type NstanceMachineList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NstanceMachine `json:"items"`
}

// NstanceMachineTemplate is the template from which Cluster API creates NstanceMachines.
// It is immutable.
//
// +genclient
// +genclient:noStatus
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=nstancemachinetemplates,scope=Namespaced,shortName=nsmt,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.template.spec.groupRef.name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NstanceMachineTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec NstanceMachineTemplateSpec `json:"spec"`
}

// NstanceMachineTemplateSpec contains the template.
type NstanceMachineTemplateSpec struct {
	// template is the template of the NstanceMachines.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="template is immutable"
	Template NstanceMachineTemplateResource `json:"template"`
}

// NstanceMachineTemplateResource is the template of the NstanceMachines.
type NstanceMachineTemplateResource struct {
	// spec is the spec of the NstanceMachines.
	// +required
	Spec NstanceMachineSpec `json:"spec"`
}

// NstanceMachineTemplateList is a list of NstanceMachineTemplates.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type NstanceMachineTemplateList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NstanceMachineTemplate `json:"items"`
}
