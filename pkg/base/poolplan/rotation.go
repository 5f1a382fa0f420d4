// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolplan

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/rotation"
)

// defaultProgressDeadline is how long an instance may take to have a Ready Node.
const defaultProgressDeadline = 1800

// RotationPolicy returns the policy for the rotation of a pool with these replicas. A window that
// cannot be read blocks the rotation: it allows nothing.
func RotationPolicy(spec *v1beta1.RotationPolicy, replicas int32) rotation.Policy {
	seconds := func(n *int32, unset int32) time.Duration { return time.Duration(ptr.Deref(n, unset)) * time.Second }
	policy := rotation.Policy{
		MaxSurge:         scaled(spec.MaxSurge, 1, replicas, true),
		MaxUnavailable:   scaled(spec.MaxUnavailable, 0, replicas, false),
		ShardByShard:     spec.Order == v1beta1.RotationShardByShard,
		Canary:           spec.Canary,
		Bake:             seconds(spec.BakeSeconds, 0),
		MinReady:         seconds(spec.MinReadySeconds, 0),
		AllReady:         slices.Contains(spec.PauseWhile, v1beta1.PauseWhileInstanceNotReady),
		ProgressDeadline: seconds(spec.ProgressDeadlineSeconds, defaultProgressDeadline),
		Paused:           ptr.Deref(spec.Paused, false),
	}
	if policy.MaxSurge == 0 {
		// A percentage of few replicas may be less than one.
		policy.MaxUnavailable = max(policy.MaxUnavailable, 1)
	}
	for i, window := range spec.Windows {
		parsed, err := rotation.NewWindow(window.Schedule, window.TimeZone, time.Duration(window.DurationMinutes)*time.Minute)
		if err != nil {
			policy.Blocked = &rotation.Stop{Reason: v1beta1.ReasonInvalidSchedule, Message: fmt.Sprintf("spec.rotation.windows[%d]: %s", i, err)}
			continue
		}
		policy.Windows = append(policy.Windows, parsed)
	}
	if policy.Blocked != nil {
		policy.Windows = nil
	}
	return policy
}

// LooksAtNodes reports whether a rotation looks at the Nodes of new instances.
func LooksAtNodes(spec *v1beta1.RotationPolicy) bool {
	return ptr.Deref(spec.ProgressDeadlineSeconds, defaultProgressDeadline) > 0
}

// scaled returns a number, or a percentage of the replicas.
func scaled(value *intstr.IntOrString, unset, replicas int32, roundUp bool) int32 {
	if value == nil {
		return unset
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(value, int(replicas), roundUp)
	if err != nil {
		// The CRD has a rule against it.
		return unset
	}
	return int32(min(max(n, 0), v1beta1.MaxReplicas))
}

// GrantOf returns the grant of a shard group, nil without a grant.
func GrantOf(grant *v1beta1.RotationGrant) *rotation.Grant {
	if grant == nil {
		return nil
	}
	converted := &rotation.Grant{MaxSurge: grant.MaxSurge, MaxUnavailable: grant.MaxUnavailable, UpToDate: grant.UpToDate, Target: grant.Target}
	if grant.NotAfter != nil {
		converted.NotAfter = grant.NotAfter.Time
	}
	return converted
}

// NewGrant returns the grant for a shard group, with what the policy says about which instances are
// outdated.
func NewGrant(grant rotation.Grant, spec *v1beta1.RotationPolicy) *v1beta1.RotationGrant {
	converted := &v1beta1.RotationGrant{
		MaxSurge: grant.MaxSurge, MaxUnavailable: grant.MaxUnavailable, UpToDate: grant.UpToDate,
		After: spec.After, MaxAgeSeconds: spec.MaxAgeSeconds, Target: grant.Target,
	}
	if !grant.NotAfter.IsZero() {
		converted.NotAfter = ptr.To(metav1.NewTime(grant.NotAfter))
	}
	return converted
}
