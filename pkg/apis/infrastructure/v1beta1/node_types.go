// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import corev1 "k8s.io/api/core/v1"

// NodeSettings are labels, taints and the maximum number of Pods of the Nodes of a pool. Kubelets may
// register with them, if the userdata says so. The operator sets labels and taints when a Node has
// registered, and changes them in place: no instance is replaced
// (docs/reference.md#labels-and-taints).
//
// +kubebuilder:validation:MinProperties=1
type NodeSettings struct {
	// labels are set on each Node, also those that a kubelet may not set itself, such as
	// node-role.kubernetes.io/worker.
	// +optional
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(key, key != '' && key.size() <= 317 && self[key].size() <= 63)",message="a key must have 1 to 317 characters, and a value at most 63"
	// +kubebuilder:validation:XValidation:rule="self.all(key, !key.startsWith('nstance.dev/') && !key.startsWith('node.cluster.x-k8s.io/') && !key.startsWith('node.kubernetes.io/') && !key.startsWith('topology.kubernetes.io/') && !key.startsWith('kubernetes.io/'))",message="labels of kubelets, of clouds, of Cluster API and of Nstance cannot be set"
	Labels map[string]string `json:"labels,omitempty"`
	// taints are set on each Node.
	// +optional
	// +listType=map
	// +listMapKey=key
	// +listMapKey=effect
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Taints []NodeTaint `json:"taints,omitempty"`
	// maxPods is how many Pods a Node runs at most. The kubelets of new instances get it; those that
	// run keep theirs. An unset field leaves it to the kubelet.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	MaxPods int32 `json:"maxPods,omitempty"`
}

// NodeTaint is a taint of the Nodes of a pool, with the fields of a taint of a Machine.
//
// +kubebuilder:validation:XValidation:rule="!self.key.startsWith('nstance.dev/') && !self.key.startsWith('node.cluster.x-k8s.io/') && (!self.key.startsWith('node.kubernetes.io/') || self.key == 'node.kubernetes.io/out-of-service')",message="taints of Kubernetes, of Cluster API and of Nstance cannot be set"
type NodeTaint struct {
	// key is the key of the taint.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`
	Key string `json:"key,omitempty"`
	// value is the value of the taint.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$`
	Value string `json:"value,omitempty"`
	// effect is what the taint does to Pods that do not tolerate it.
	// +required
	// +kubebuilder:validation:Enum=NoSchedule;PreferNoSchedule;NoExecute
	Effect corev1.TaintEffect `json:"effect,omitempty"`
	// propagation is Always or OnInitialization. Always: the taint is set again if it is removed.
	// OnInitialization: it is set once, on a Node that has registered with the taint
	// nstance.dev/uninitialized, and the component that it is for removes it.
	// +required
	Propagation TaintPropagation `json:"propagation,omitempty"`
}

// TaintPropagation is when a taint is set.
//
// +kubebuilder:validation:Enum=Always;OnInitialization
type TaintPropagation string

// When a taint is set.
const (
	TaintAlways           TaintPropagation = "Always"
	TaintOnInitialization TaintPropagation = "OnInitialization"
)

// Limits of a ReportedNode. What a server reports is cut, as in a GroupConfig.
const (
	// MaxReportedTaints is the largest number of taints.
	MaxReportedTaints = 64
	// MaxReportedTaintKey is the longest key of a taint, in characters.
	MaxReportedTaintKey = 317
	// MaxReportedTaintValue is the longest value, and effect, of a taint, in characters.
	MaxReportedTaintValue = 63
)

// ReportedNode has the node settings of a group as a server reports them, with labels and taints of
// its configuration.
type ReportedNode struct {
	// labels are the merged labels.
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// taints are the merged taints.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Taints []ReportedTaint `json:"taints,omitempty"`
	// maxPods is the maximum number of Pods in force. It is not set if it is left to the kubelet.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MaxPods int32 `json:"maxPods,omitempty"`
}

// ReportedTaint is a taint of a ReportedNode.
type ReportedTaint struct {
	// key is the key of the taint.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	Key string `json:"key,omitempty"`
	// value is the value of the taint.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Value string `json:"value,omitempty"`
	// effect is what the taint does to Pods that do not tolerate it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Effect string `json:"effect,omitempty"`
}

// TaintUninitialized is a taint with which a kubelet may register its Node. The operator removes it when
// it has set the labels and taints of the pool, so that no Pod is scheduled before.
const TaintUninitialized = "nstance.dev/uninitialized"
