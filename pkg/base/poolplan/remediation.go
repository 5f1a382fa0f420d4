// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolplan

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/remediation"
)

// defaultUnhealthy is the share of the Nodes of a pool that may be unhealthy.
const defaultUnhealthy = "20%"

// RemediationPolicy returns the policy for the unhealthy Nodes of a pool with so many instances.
func RemediationPolicy(spec *v1beta1.RemediationPolicy, instances int32) remediation.Policy {
	limit := int(atLeastOne(cmp.Or(spec.TriggerIf.UnhealthyLessThanOrEqualTo, ptr.To(intstr.FromString(defaultUnhealthy))), instances))
	policy := remediation.Policy{
		StartupTimeout: time.Duration(spec.Checks.NodeStartupTimeoutSeconds) * time.Second,
		Limit:          limit,
		MaxInFlight:    limit,
	}
	if spec.MaxInFlight != nil {
		policy.MaxInFlight = int(atLeastOne(spec.MaxInFlight, instances))
	}
	for _, check := range spec.Checks.UnhealthyNodeConditions {
		policy.Checks = append(policy.Checks, remediation.Check{
			Type: string(check.Type), Status: string(check.Status), Timeout: time.Duration(check.TimeoutSeconds) * time.Second,
		})
	}
	return policy
}

// atLeastOne returns a number as it is, or a percentage of the instances, which is rounded down and is
// at least 1: a pool of four would have no unhealthy Node otherwise.
func atLeastOne(value *intstr.IntOrString, instances int32) int32 {
	n := scaled(value, 0, instances, false)
	if value.Type == intstr.String {
		return max(n, 1)
	}
	return n
}

// HealthOf returns what a policy looks at in a Node.
func HealthOf(node *corev1.Node) *remediation.Node {
	health := &remediation.Node{Name: node.Name}
	for _, condition := range node.Status.Conditions {
		health.Conditions = append(health.Conditions, remediation.Condition{
			Type: string(condition.Type), Status: string(condition.Status), Since: condition.LastTransitionTime.Time,
		})
	}
	return health
}
