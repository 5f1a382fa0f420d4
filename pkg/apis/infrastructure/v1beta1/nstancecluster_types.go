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
// +kubebuilder:resource:path=nstanceclusters,scope=Namespaced,shortName=nsc;nstc,categories=cluster-api;nstance
// +kubebuilder:metadata:labels="clusterctl.cluster.x-k8s.io="
// +kubebuilder:metadata:labels="cluster.x-k8s.io/provider=infrastructure-nstance"
// +kubebuilder:metadata:labels="cluster.x-k8s.io/v1beta2=v1beta1"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.spec.controlPlaneEndpoint.host`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NstanceCluster struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the metadata of the object.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the address of the API server.
	// +optional
	Spec NstanceClusterSpec `json:"spec,omitempty,omitzero"`
	// status is the status that Cluster API reads of an infrastructure cluster and of a
	// control plane.
	// +optional
	Status NstanceClusterStatus `json:"status,omitempty,omitzero"`
}

// NstanceClusterSpec is the address of the API server.
type NstanceClusterSpec struct {
	// controlPlaneEndpoint is the API server of the cluster. Cluster API copies
	// it to the Cluster.
	// +optional
	ControlPlaneEndpoint APIEndpoint `json:"controlPlaneEndpoint,omitempty,omitzero"`
}

// APIEndpoint is the address of an API server.
//
// +kubebuilder:validation:MinProperties=1
type APIEndpoint struct {
	// host is a DNS name or an IP address.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Host string `json:"host,omitempty"`
	// port is the TCP port. It is not set without host.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
}

// NstanceClusterStatus is the status that Cluster API reads of an infrastructure
// cluster and of a control plane.
//
// +kubebuilder:validation:MinProperties=1
type NstanceClusterStatus struct {
	// conditions are the current conditions: Ready, Available, Paused, KubeconfigAvailable,
	// IdentityReady, and WorkloadClusterReachable in an external cluster.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// initialization contains the initial steps that are complete.
	// +optional
	Initialization NstanceClusterInitialization `json:"initialization,omitempty,omitzero"`
	// externalManagedControlPlane is always true: the control plane does not consist of
	// Cluster API Machines. Without this field Cluster API neither drains nor deletes
	// Nodes.
	// +optional
	ExternalManagedControlPlane *bool `json:"externalManagedControlPlane,omitempty"`
	// failureDomains are the configured shards. The failureDomain of a Machine may name each.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=100
	FailureDomains []FailureDomain `json:"failureDomains,omitempty"`
	// observedGeneration is the generation that the status was computed from.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// MaxFailureDomains is the largest number of failure domains, as in a Cluster.
const MaxFailureDomains = 100

// FailureDomain is a shard in which Machines can be
// (https://cluster-api.sigs.k8s.io/developer/providers/contracts/infra-cluster#infracluster-failuredomains).
type FailureDomain struct {
	// name is the id of the shard.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name,omitempty"`
	// controlPlane is true if Machines of a control plane can be in the shard. Nstance manages
	// no control plane with Machines: it is false.
	// +optional
	ControlPlane *bool `json:"controlPlane,omitempty"`
}

// NstanceClusterInitialization contains the fields that Cluster API waits for once.
//
// +kubebuilder:validation:MinProperties=1
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
