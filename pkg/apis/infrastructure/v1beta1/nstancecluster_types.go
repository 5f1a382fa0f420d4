// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NstanceCluster stands for the Kubernetes cluster whose nodes Nstance makes.
// Nstance manages machines and not clusters, so the object only tells Cluster
// API where the API server is, and that its control plane is managed elsewhere:
// the Cluster names it both as infrastructure and as control plane.
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

// NstanceClusterSpec says where the cluster's API server is.
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

// NstanceClusterStatus is what Cluster API reads of an infrastructure cluster
// and of a control plane.
type NstanceClusterStatus struct {
	// initialization tells which first steps are done.
	// +optional
	Initialization NstanceClusterInitialization `json:"initialization,omitempty"`
	// externalManagedControlPlane is always true: the control plane is not made
	// of Cluster API Machines. Cluster API drains and deletes Nodes only when it
	// knows that (CAPI contract).
	// +optional
	ExternalManagedControlPlane *bool `json:"externalManagedControlPlane,omitempty"`
	// conditions tell the present state: Ready, Available, KubeconfigAvailable,
	// Paused.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +patchStrategy=merge
	// +patchMergeKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`
}

// NstanceClusterInitialization holds the marks that CAPI waits for once.
type NstanceClusterInitialization struct {
	// provisioned is true at once, since there is nothing to provision at the
	// level of the cluster.
	// +optional
	Provisioned *bool `json:"provisioned,omitempty"`
	// controlPlaneInitialized is true at once, since the operator talks to the
	// very API server it stands for.
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
