// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NstanceMachine is an instance that belongs to a Cluster API Machine.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nstancemachines,scope=Namespaced,shortName=nsm;nstm,categories=cluster-api;nstance
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=infrastructure-nstance"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.groupRef.name`
// +kubebuilder:printcolumn:name="Shard",type=string,JSONPath=`.status.shard`
// +kubebuilder:printcolumn:name="InstanceID",type=string,JSONPath=`.status.instanceID`
// +kubebuilder:printcolumn:name="ProviderID",type=string,JSONPath=`.spec.providerID`,priority=1
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NstanceMachine struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the metadata of the object.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the request for an instance. Only providerID can be changed, because the
	// instance is created from the other fields.
	// +required
	Spec NstanceMachineSpec `json:"spec,omitzero"`
	// status is the state of the instance that the shard reports.
	// +optional
	Status NstanceMachineStatus `json:"status,omitempty,omitzero"`
}

// NstanceMachineSpec is the request for an instance. Only providerID can be changed,
// because the instance is created from the other fields.
//
// +kubebuilder:validation:XValidation:rule="has(self.shard) == has(oldSelf.shard) && (!has(self.shard) || self.shard == oldSelf.shard)",message="shard is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.instanceType) == has(oldSelf.instanceType) && (!has(self.instanceType) || self.instanceType == oldSelf.instanceType)",message="instanceType is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.vars) && self.vars.size() > 0 ? has(oldSelf.vars) && self.vars == oldSelf.vars : !has(oldSelf.vars) || oldSelf.vars.size() == 0",message="vars is immutable"
// +kubebuilder:validation:XValidation:rule="has(self.loadBalancers) && self.loadBalancers.size() > 0 ? has(oldSelf.loadBalancers) && self.loadBalancers == oldSelf.loadBalancers : !has(oldSelf.loadBalancers) || oldSelf.loadBalancers.size() == 0",message="loadBalancers is immutable"
type NstanceMachineSpec struct {
	// groupRef is the Nstance group whose template is used.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="groupRef is immutable"
	GroupRef GroupReference `json:"groupRef,omitzero"`
	// shard is the shard of the instance. If it is not set, the instance is on the shard of
	// the Machine's failureDomain, or on a shard that the operator selects. If both are set,
	// they must be the same.
	// +optional
	Shard Identifier `json:"shard,omitempty"`
	// instanceType overrides the instance type of the group.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$`
	InstanceType string `json:"instanceType,omitempty"`
	// vars are added to the vars of the group and override them: at most 64, with names of at
	// most 256 and values of at most 4096 characters.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(name, name != '' && name.size() <= 256 && self[name].size() <= 4096)",message="a name must have 1 to 256 characters, and a value at most 4096"
	Vars map[string]string `json:"vars,omitempty"`
	// loadBalancers are keys of load balancers in the server's configuration, with which the
	// instance is registered, if the server allows them. An unset field means the load balancers of
	// the group.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(s, self.exists_one(t, s == t))",message="loadBalancers must not contain a load balancer twice"
	LoadBalancers []Identifier `json:"loadBalancers,omitempty"`
	// providerID is the provider id of the instance. The operator sets it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	ProviderID string `json:"providerID,omitempty"`
}

// GroupReference names an Nstance group.
type GroupReference struct {
	// name is the id of the group.
	// +required
	Name Identifier `json:"name,omitempty"`
}

// NstanceMachineStatus is the state of the instance that the shard reports.
//
// +kubebuilder:validation:MinProperties=1
type NstanceMachineStatus struct {
	// conditions are the current conditions: Ready, InstanceCreated, ServerDeleted,
	// DrainsProgressing, Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// instanceID is the id of the instance on its shard.
	// +optional
	// +kubebuilder:validation:MinLength=1
	InstanceID string `json:"instanceID,omitempty"`
	// shard is the shard of the instance. It is set before the create request is sent.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Shard string `json:"shard,omitempty"`
	// requestID is the idempotency key of the create request. It is set before the
	// request is sent; a repeated request with the same key returns the same instance.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	RequestID string `json:"requestID,omitempty"`
	// providerID is the provider id of the instance.
	// +optional
	// +kubebuilder:validation:MinLength=1
	ProviderID string `json:"providerID,omitempty"`
	// failureDomain is the shard of the instance, once it is known. Cluster API copies it to
	// the Machine.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	FailureDomain string `json:"failureDomain,omitempty"`
	// ready is true while the instance is running.
	// +optional
	Ready *bool `json:"ready,omitempty"`
	// initialization contains the field that Cluster API waits for once.
	// +optional
	Initialization NstanceMachineInitialization `json:"initialization,omitempty,omitzero"`
	// addresses are the addresses of the instance.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=128
	Addresses []MachineAddress `json:"addresses,omitempty"`
	// observedGeneration is the generation that the status was computed from.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// NstanceMachineInitialization contains the field that Cluster API waits for once.
//
// +kubebuilder:validation:MinProperties=1
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
	Type string `json:"type,omitempty"`
	// address is a host name or an IP address.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Address string `json:"address,omitempty"`
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
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nstancemachinetemplates,scope=Namespaced,shortName=nsmt;nstmt,categories=cluster-api;nstance
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=infrastructure-nstance"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=`.spec.template.spec.groupRef.name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NstanceMachineTemplate struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the metadata of the object.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec contains the template.
	// +required
	Spec NstanceMachineTemplateSpec `json:"spec,omitzero"`
	// status has what the cluster autoscaler needs to scale up from zero
	// (https://cluster-api.sigs.k8s.io/developer/providers/contracts/infra-machine#autoscaling-from-zero).
	// +optional
	Status NstanceMachineTemplateStatus `json:"status,omitempty,omitzero"`
}

// NstanceMachineTemplateSpec contains the template.
type NstanceMachineTemplateSpec struct {
	// template is the template of the NstanceMachines.
	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="template is immutable"
	Template NstanceMachineTemplateResource `json:"template,omitzero"`
}

// NstanceMachineTemplateStatus has what the cluster autoscaler needs to scale up from zero
// (https://cluster-api.sigs.k8s.io/developer/providers/contracts/infra-machine#autoscaling-from-zero).
type NstanceMachineTemplateStatus struct {
	// capacity is the capacity of a Node of the group, as far as the shards know it.
	// +optional
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// nodeInfo is the platform of a Node of the group.
	// +optional
	NodeInfo NodeInfo `json:"nodeInfo,omitempty,omitzero"`
}

// NstanceMachineTemplateResource is the template of the NstanceMachines.
//
// +kubebuilder:validation:XValidation:rule="!has(self.spec.providerID)",fieldPath=".spec.providerID",reason="FieldValueForbidden",message="each instance has a provider id of its own, which the operator sets"
type NstanceMachineTemplateResource struct {
	// metadata has the labels and annotations of the NstanceMachines.
	// +optional
	ObjectMeta TemplateMetadata `json:"metadata,omitempty,omitzero"`
	// spec is the spec of the NstanceMachines.
	// +required
	Spec NstanceMachineSpec `json:"spec,omitzero"`
}

// TemplateMetadata is the part of the metadata that a template sets, as Cluster API copies it
// (https://cluster-api.sigs.k8s.io/developer/providers/contracts/infra-machine#inframachinetemplate-support-for-ssa-dry-run).
//
// +kubebuilder:validation:MinProperties=1
type TemplateMetadata struct {
	// labels are the labels of the objects.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Labels map[string]string `json:"labels,omitempty"`
	// annotations are the annotations of the objects.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Annotations map[string]string `json:"annotations,omitempty"`
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
