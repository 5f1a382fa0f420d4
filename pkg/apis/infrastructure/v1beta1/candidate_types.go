// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import "k8s.io/apimachinery/pkg/util/intstr"

// Market is how an instance is paid for, and whether its provider may take it back. Providers
// may have other markets than these.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:Pattern=`^[A-Z][A-Za-z0-9]*$`
type Market string

// Markets that several providers have.
const (
	// MarketStandard: the instance stays until it is deleted, at the list price.
	MarketStandard Market = "Standard"
	// MarketSpot: the provider may take the instance back at any time.
	MarketSpot Market = "Spot"
)

// CandidateName is the name of a candidate: a DNS label.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`
type CandidateName string

// InstanceType is an instance type of a provider.
//
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=128
// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._/-]*[A-Za-z0-9])?$`
type InstanceType string

// Candidate is an instance type in a market, and how many instances of a pool may be of it
// (docs/reference.md#candidates).
type Candidate struct {
	// name identifies the candidate in status, events and metrics.
	// +required
	Name CandidateName `json:"name,omitempty"`
	// instanceType is the instance type, if the server allows it. An unset field means the instance type of the
	// template.
	// +optional
	InstanceType InstanceType `json:"instanceType,omitempty"`
	// market is Standard, Spot, or another market of the provider. An unset field means the market that
	// the arguments of the template mean.
	// +optional
	Market Market `json:"market,omitempty"`
	// maxReplicas is how many instances of the pool may be of this candidate, as a number or as a
	// percentage of the replicas, which is rounded up. An unset field means no maximum; the last
	// candidate has none.
	// +optional
	// +kubebuilder:validation:XIntOrString
	// +kubebuilder:validation:Pattern=`^([0-9]|[1-9][0-9]|100)%$`
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : true",message="must be a number from 0 on, or a percentage from 0% to 100%"
	MaxReplicas *intstr.IntOrString `json:"maxReplicas,omitempty"`
}

// ShardCandidate is a candidate of the pool on one shard.
type ShardCandidate struct {
	// name identifies the candidate in status, events and metrics.
	// +required
	Name CandidateName `json:"name,omitempty"`
	// instanceType is the instance type. An unset field means the instance type of the template.
	// +optional
	InstanceType InstanceType `json:"instanceType,omitempty"`
	// market is the market. An unset field means the market that the arguments of the template mean.
	// +optional
	Market Market `json:"market,omitempty"`
	// maxReplicas is how many instances of this shard may be of the candidate: its share of the
	// maximum of the pool. An unset field means no maximum.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	MaxReplicas *int32 `json:"maxReplicas,omitempty"`
}

// Limits of status.candidates of a shard group. The API server rejects the whole status if one of
// them is exceeded.
const (
	// MaxCandidates is the largest number of entries.
	MaxCandidates = 16
	// MaxCandidateName is the longest name, and the longest market, in characters. The longest
	// instance type has MaxReportedLength.
	MaxCandidateName = 63
	// MaxCandidateMessage is the longest reason of a candidate that is not available, in characters.
	MaxCandidateMessage = 256
)

// CandidateUse is how many instances of a candidate a shard has.
type CandidateUse struct {
	// name is the name of the candidate.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name,omitempty"`
	// instanceType is the instance type in force.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	InstanceType string `json:"instanceType,omitempty"`
	// market is the market in force. It is not set if the provider has no markets.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Market string `json:"market,omitempty"`
	// replicas is the number of instances, without instances that are being deleted.
	// +required
	// +kubebuilder:validation:Minimum=0
	Replicas int32 `json:"replicas"`
	// unavailable is why the provider creates no instance of the candidate now. It is not set if
	// nothing is known against the candidate.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Unavailable string `json:"unavailable,omitempty"`
}
