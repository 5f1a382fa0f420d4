// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

// GroupSettings is the configuration of a group apart from its size. A field that
// is left out has the value that the server's own configuration gives it; a value
// that is removed here is removed on the servers too.
type GroupSettings struct {
	// template is the server's template of a group that is not in the server's own
	// configuration. It is left out for a group that is.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Template string `json:"template,omitempty"`
	// subnets are ids of subnet pools, tried in this order. They override the
	// template's.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Subnets []Identifier `json:"subnets,omitempty"`
	// instanceType overrides the template's, if the server allows it.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	InstanceType string `json:"instanceType,omitempty"`
	// vars are merged over the template's vars.
	// +optional
	Vars map[string]string `json:"vars,omitempty"`
}

// GroupConfig is a group's configuration as a server reports it.
type GroupConfig struct {
	// template is the template in force.
	// +optional
	Template string `json:"template,omitempty"`
	// subnets are the subnet pools in force, in the order they are tried.
	// +optional
	// +listType=atomic
	Subnets []string `json:"subnets,omitempty"`
	// instanceType is the instance type in force.
	// +optional
	InstanceType string `json:"instanceType,omitempty"`
	// vars are the merged vars.
	// +optional
	Vars map[string]string `json:"vars,omitempty"`
}
