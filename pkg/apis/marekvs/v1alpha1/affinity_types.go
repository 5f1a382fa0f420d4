// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Affinity restricts the Kubernetes Nodes of the Pods, or prefers some. Its fields have the names and
// meanings of Kubernetes
// (https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#affinity-and-anti-affinity).
//
// +kubebuilder:validation:MinProperties=1
type Affinity struct {
	// nodeAffinity chooses Nodes by their labels.
	// +optional
	NodeAffinity NodeAffinity `json:"nodeAffinity,omitempty,omitzero"`
	// podAffinity chooses Nodes near the Pods that its terms select.
	// +optional
	PodAffinity PodAffinity `json:"podAffinity,omitempty,omitzero"`
	// podAntiAffinity chooses Nodes away from the Pods that its terms select.
	// +optional
	PodAntiAffinity PodAffinity `json:"podAntiAffinity,omitempty,omitzero"`
}

// NodeAffinity chooses Nodes by their labels.
//
// +kubebuilder:validation:MinProperties=1
type NodeAffinity struct {
	// requiredDuringSchedulingIgnoredDuringExecution must be true of the Node of a Pod.
	// +optional
	RequiredDuringSchedulingIgnoredDuringExecution NodeSelector `json:"requiredDuringSchedulingIgnoredDuringExecution,omitempty,omitzero"`
	// preferredDuringSchedulingIgnoredDuringExecution are preferences, each with a weight.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	PreferredDuringSchedulingIgnoredDuringExecution []PreferredNodes `json:"preferredDuringSchedulingIgnoredDuringExecution,omitempty"`
}

// NodeSelector selects Nodes for which one of its terms is true.
type NodeSelector struct {
	// nodeSelectorTerms are the terms.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	NodeSelectorTerms []NodeSelectorTerm `json:"nodeSelectorTerms,omitempty"`
}

// NodeSelectorTerm selects Nodes for which all expressions are true.
type NodeSelectorTerm struct {
	// matchExpressions are conditions on the labels of a Node.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	MatchExpressions []NodeSelectorRequirement `json:"matchExpressions,omitempty"`
}

// NodeSelectorRequirement is a condition on a label of a Node.
//
// +kubebuilder:validation:XValidation:rule="self.operator in ['In', 'NotIn'] ? has(self.values) && self.values.size() > 0 : self.operator in ['Gt', 'Lt'] ? has(self.values) && self.values.size() == 1 : !has(self.values) || self.values.size() == 0",message="values must have at least one value with the operators In and NotIn, exactly one with Gt and Lt, and none with Exists and DoesNotExist"
type NodeSelectorRequirement struct {
	// key is the label.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key,omitempty"`
	// operator compares the label with the values.
	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist;Gt;Lt
	Operator corev1.NodeSelectorOperator `json:"operator,omitempty"`
	// values are the values.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	Values []string `json:"values,omitempty"`
}

// PreferredNodes is a preference for some Nodes.
type PreferredNodes struct {
	// weight is added to the score of the Nodes.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight int32 `json:"weight,omitempty"`
	// preference selects the Nodes.
	// +required
	Preference NodeSelectorTerm `json:"preference,omitempty,omitzero"`
}

// PodAffinity chooses Nodes by the Pods that run there.
//
// +kubebuilder:validation:MinProperties=1
type PodAffinity struct {
	// requiredDuringSchedulingIgnoredDuringExecution are terms that must all be true of the Node of
	// a Pod.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	RequiredDuringSchedulingIgnoredDuringExecution []PodAffinityTerm `json:"requiredDuringSchedulingIgnoredDuringExecution,omitempty"`
	// preferredDuringSchedulingIgnoredDuringExecution are preferences, each with a weight.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	PreferredDuringSchedulingIgnoredDuringExecution []PreferredPods `json:"preferredDuringSchedulingIgnoredDuringExecution,omitempty"`
}

// PodAffinityTerm selects Pods, and the Nodes around them.
type PodAffinityTerm struct {
	// labelSelector selects Pods by their labels. An unset field selects no Pod.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// namespaces are the namespaces of the Pods. Without namespaces and namespaceSelector, they are
	// in the namespace of the cluster.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Namespaces []string `json:"namespaces,omitempty"`
	// namespaceSelector selects more namespaces by their labels; {} selects all namespaces.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
	// topologyKey is the label of Nodes whose value is equal for Nodes that are near each other.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	TopologyKey string `json:"topologyKey,omitempty"`
}

// PreferredPods is a preference for Nodes near some Pods, or away from them.
type PreferredPods struct {
	// weight is added to the score of the Nodes.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Weight int32 `json:"weight,omitempty"`
	// podAffinityTerm selects the Pods.
	// +required
	PodAffinityTerm PodAffinityTerm `json:"podAffinityTerm,omitempty,omitzero"`
}
