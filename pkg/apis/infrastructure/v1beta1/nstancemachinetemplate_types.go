// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
