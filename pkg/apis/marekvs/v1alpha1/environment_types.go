// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1alpha1

// LocalReference names an object in the namespace of the cluster.
type LocalReference struct {
	// name is the name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
}

// EnvFromSource is a Secret or a ConfigMap whose entries are environment variables.
//
// +kubebuilder:validation:XValidation:rule="has(self.secretRef) != has(self.configMapRef)",message="either secretRef or configMapRef must be set"
type EnvFromSource struct {
	// prefix is put before the name of each entry.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Prefix string `json:"prefix,omitempty"`
	// secretRef names a Secret, which must exist.
	// +optional
	SecretRef LocalReference `json:"secretRef,omitempty,omitzero"`
	// configMapRef names a ConfigMap, which must exist.
	// +optional
	ConfigMapRef LocalReference `json:"configMapRef,omitempty,omitzero"`
}

// SecretVariable is an environment variable whose value is an entry of a Secret.
type SecretVariable struct {
	// name is the name of the variable. The names that extraEnv must not have are not allowed.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z][-._a-zA-Z0-9]*$`
	// +kubebuilder:validation:XValidation:rule="!(self in ['MAREKVS_SEEDS', 'MAREKVS_ADVERTISE_IP', 'MAREKVS_REPLICAS_N', 'MAREKVS_DATA_DIR', 'MAREKVS_METRICS_ADDR', 'MAREKVS_CLUSTER', 'MAREKVS_NODE_ID', 'HOSTNAME', 'MAREKVS_RESP_ADDR', 'MAREKVS_MESH_ADDR', 'MAREKVS_GOSSIP_ADDR', 'MAREKVS_AE_PARTITIONS_PER_ROUND'])",message="the name is not allowed, because the operator sets the variable or relies on its default"
	Name string `json:"name,omitempty"`
	// secretKeyRef is the entry.
	// +required
	SecretKeyRef SecretKeyReference `json:"secretKeyRef,omitzero"`
}

// SecretKeyReference names an entry of a Secret in the namespace of the cluster.
type SecretKeyReference struct {
	// name is the name of the Secret.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// key is the key of the entry.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._a-zA-Z0-9]+$`
	Key string `json:"key,omitempty"`
}
