// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

// Identifier is an id that is valid for every provider: lower case letters, digits and
// single hyphens, at most 32 characters.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
// +kubebuilder:validation:XValidation:rule="!self.contains('--')",message="must not contain consecutive hyphens"
type Identifier string

// GroupSettings is the configuration of a group apart from its size. A field that
// is left out has the value that the server's own configuration gives it; a value
// that is removed here is removed on the servers too.
type GroupSettings struct {
	// template is the server's template of a group that is not in the server's own
	// configuration. For a group in the configuration it is left out.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`
	Template string `json:"template,omitempty"`
	// subnets are ids of subnet pools, tried in this order. They override the
	// template's.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(s, self.exists_one(t, s == t))",message="subnets must not contain a subnet pool twice"
	Subnets []Identifier `json:"subnets,omitempty"`
	// instanceType overrides the template's, if the server allows it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$`
	InstanceType string `json:"instanceType,omitempty"`
	// vars are merged over the template's vars: at most 64, with names of at most 256 and
	// values of at most 4096 characters.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(name, name != '' && name.size() <= 256 && self[name].size() <= 4096)",message="a name must have 1 to 256 characters, and a value at most 4096"
	Vars map[string]string `json:"vars,omitempty"`
	// loadBalancers are keys of load balancers in the server's configuration, with which the
	// instances are registered, if the server allows them. They override the configuration's. An
	// unset field means the load balancers of the configuration. A change replaces no instance.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:XValidation:rule="self.all(s, self.exists_one(t, s == t))",message="loadBalancers must not contain a load balancer twice"
	LoadBalancers []Identifier `json:"loadBalancers,omitempty"`
	// drainTimeoutSeconds is how long an instance may take to drain before its shard terminates it,
	// in seconds, as far as the server allows it. An unset field means the drain timeout of the
	// server's configuration. A change replaces no instance, and does not change a drain that has
	// begun.
	// +optional
	// +kubebuilder:validation:Minimum=1
	DrainTimeoutSeconds int32 `json:"drainTimeoutSeconds,omitempty"`
	// node has labels, taints and the maximum number of Pods of the Nodes of the pool. Other labels
	// and taints change the Nodes in place; no value replaces an instance.
	// +optional
	Node *NodeSettings `json:"node,omitempty"`
	// returnAfterSeconds is for how long a better candidate must have been free of rejections before
	// an instance is replaced by an instance of the better candidate, in seconds. Such a replacement
	// obeys rotation. An unset field means that instances stay what they are.
	// +optional
	// +kubebuilder:validation:Minimum=600
	ReturnAfterSeconds int32 `json:"returnAfterSeconds,omitempty"`
}

// Limits of a GroupConfig and of the fields of a pool's status that are copied from it. What a
// server reports is cut, because the API server rejects the whole status if one of them is
// exceeded.
const (
	// MaxReportedLength is the longest template, instance type and id of a subnet pool, in
	// characters.
	MaxReportedLength = 253
	// MaxReportedSubnets is the largest number of subnet pools, and of load balancers.
	MaxReportedSubnets = 64
)

// GroupConfig is a group's configuration as a server reports it.
type GroupConfig struct {
	// template is the template in force.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Template string `json:"template,omitempty"`
	// subnets are the subnet pools in force, in the order they are tried.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	Subnets []string `json:"subnets,omitempty"`
	// instanceType is the instance type in force.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	InstanceType string `json:"instanceType,omitempty"`
	// vars are the merged vars.
	// +optional
	Vars map[string]string `json:"vars,omitempty"`
	// loadBalancers are the load balancers in force.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	LoadBalancers []string `json:"loadBalancers,omitempty"`
	// drainTimeoutSeconds is the drain timeout in force, in seconds. It is not set if instances are
	// not drained, or if the server does not report it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	DrainTimeoutSeconds int32 `json:"drainTimeoutSeconds,omitempty"`
	// node has the labels, the taints and the maximum number of Pods that the kubelets of new
	// instances get. It is not set if there are none, or if the server does not report them.
	// +optional
	Node *ReportedNode `json:"node,omitempty"`
	// returnAfterSeconds is for how long a better candidate must have been free of rejections before
	// an instance is replaced by an instance of the better candidate, in seconds. It is not set if
	// instances stay what they are, or if the server does not report it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ReturnAfterSeconds int32 `json:"returnAfterSeconds,omitempty"`
}
