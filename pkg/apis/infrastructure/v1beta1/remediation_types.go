// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// RemediationPolicy replaces the instances of unhealthy Nodes, also in pools without Machines
// (docs/reference.md#remediation). The fields have the names and units of a MachineHealthCheck
// (https://cluster-api.sigs.k8s.io/tasks/automated-machine-management/healthchecking).
type RemediationPolicy struct {
	// checks decide which Nodes are unhealthy.
	// +required
	Checks RemediationChecks `json:"checks,omitempty,omitzero"`
	// triggerIf is when the instances of unhealthy Nodes are replaced.
	// +optional
	TriggerIf RemediationTriggerIf `json:"triggerIf,omitempty,omitzero"`
	// maxInFlight is how many instances of unhealthy Nodes are replaced at once, as a number or as a
	// percentage of the instances of the pool, which is rounded down and is at least 1. An instance
	// counts until its shard no longer reports it. Without a value there is no limit but triggerIf.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 1 : self.matches('^([1-9][0-9]?|100)%$')",message="must be a number from 1 on, or a percentage from 1% to 100%"
	MaxInFlight *intstr.IntOrString `json:"maxInFlight,omitempty"`
}

// RemediationChecks decide which Nodes are unhealthy. Each check is enough.
//
// +kubebuilder:validation:MinProperties=1
type RemediationChecks struct {
	// unhealthyNodeConditions are conditions of unhealthy Nodes.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	UnhealthyNodeConditions []UnhealthyNodeCondition `json:"unhealthyNodeConditions,omitempty"`
	// nodeStartupTimeoutSeconds is for how long an instance may run without a Node, in seconds. The
	// time starts again with a new leader of the operator. An unset field means for ever.
	// +optional
	// +kubebuilder:validation:Minimum=60
	// +kubebuilder:validation:Maximum=86400
	NodeStartupTimeoutSeconds int32 `json:"nodeStartupTimeoutSeconds,omitempty"`
}

// UnhealthyNodeCondition is a condition that a Node may have for some time only.
type UnhealthyNodeCondition struct {
	// type is the type of the condition, such as Ready. A Node without a condition of the type is
	// healthy.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	// +kubebuilder:validation:Type=string
	Type corev1.NodeConditionType `json:"type,omitempty"`
	// status is the status of the condition.
	// +required
	// +kubebuilder:validation:Enum=True;False;Unknown
	Status corev1.ConditionStatus `json:"status,omitempty"`
	// timeoutSeconds is for how long a Node may have the condition, in seconds: at least a minute,
	// because a new Node is not Ready at first.
	// +required
	// +kubebuilder:validation:Minimum=60
	// +kubebuilder:validation:Maximum=86400
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// RemediationTriggerIf is when the instances of unhealthy Nodes are replaced.
//
// +kubebuilder:validation:MinProperties=1
type RemediationTriggerIf struct {
	// unhealthyLessThanOrEqualTo is how many Nodes of the pool may be unhealthy, as a number or as a
	// percentage of its instances, which is rounded down and is at least 1. If more are, the network or
	// the control plane has a problem rather than the Nodes, and no further instance is replaced. A Node
	// counts as soon as it has an unhealthy condition. An unset field means 20%.
	// +optional
	// +kubebuilder:validation:XValidation:rule="type(self) == int ? self >= 0 : self.matches('^([1-9][0-9]?|100)%$')",message="must be a number from 0 on, or a percentage from 1% to 100%"
	UnhealthyLessThanOrEqualTo *intstr.IntOrString `json:"unhealthyLessThanOrEqualTo,omitempty"`
}
