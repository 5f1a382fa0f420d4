// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NstanceCluster represents the Kubernetes cluster that the Nodes join. Nstance does
// not manage clusters: the object contains the address of the API server, and states
// that the control plane is managed externally. The Cluster refers to it both as
// infrastructure and as control plane.
//
// +genclient
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nstanceclusters,scope=Namespaced,shortName=nsc,categories=cluster-api
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.spec.controlPlaneEndpoint.host`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NstanceCluster struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec NstanceClusterSpec `json:"spec,omitempty"`
	// +optional
	Status NstanceClusterStatus `json:"status,omitempty"`
}

// NstanceClusterSpec is the address of the API server.
type NstanceClusterSpec struct {
	// controlPlaneEndpoint is the API server of the cluster. Cluster API copies
	// it to the Cluster.
	// +optional
	ControlPlaneEndpoint APIEndpoint `json:"controlPlaneEndpoint,omitempty"`
}

// APIEndpoint is the address of an API server.
type APIEndpoint struct {
	// host is a DNS name or an IP address.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Host string `json:"host,omitempty"`
	// port is the TCP port.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
}

// NstanceClusterStatus is the status that Cluster API reads of an infrastructure
// cluster and of a control plane.
type NstanceClusterStatus struct {
	// initialization contains the initial steps that are complete.
	// +optional
	Initialization NstanceClusterInitialization `json:"initialization,omitempty"`
	// externalManagedControlPlane is always true: the control plane does not consist of
	// Cluster API Machines. Without this field Cluster API neither drains nor deletes
	// Nodes.
	// +optional
	ExternalManagedControlPlane *bool `json:"externalManagedControlPlane,omitempty"`
	// conditions are the current conditions: Ready, Available, Paused,
	// KubeconfigAvailable.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NstanceClusterInitialization contains the fields that Cluster API waits for once.
type NstanceClusterInitialization struct {
	// provisioned is true from the start, because a cluster needs no infrastructure of
	// its own.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
	// controlPlaneInitialized is true from the start, because the operator runs in this
	// cluster.
	// +optional
	ControlPlaneInitialized *bool `json:"controlPlaneInitialized,omitempty"`
}

// NstanceClusterList is a list of clusters.
//
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:object:root=true
type NstanceClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NstanceCluster `json:"items"`
}
