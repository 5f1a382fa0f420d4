// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package plan

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/poolplan"
)

// rotation returns how outdated instances are replaced, as far as the pool decides it, nil if none is
// replaced or the pool has no policy: then each shard replaces one at a time.
func (b *builder) rotation() []string {
	spec := b.pool.Spec.Rotation
	if spec == nil || !b.plan.replacesAny() {
		return nil
	}
	var lines []string
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	policy := poolplan.RotationPolicy(spec, b.plan.NextReplicas)
	add("maxSurge: at most %d more than %d instances", policy.MaxSurge, b.plan.NextReplicas)
	add("maxUnavailable: at most %d fewer than %d instances work", policy.MaxUnavailable, b.plan.NextReplicas)
	if policy.ShardByShard {
		add("order: one shard after the other: %s", strings.Join(shardNames(b.pool), ", "))
	}
	if policy.Canary > 0 {
		add("canary: %d on the first shard before all others, which wait until its Nodes are %s", policy.Canary, readyFor(policy.Bake))
	}
	if policy.ProgressDeadline > 0 {
		add("steps: the next step waits until the new Nodes are %s; the rotation stops if a Node is not Ready %s after its instance was created",
			readyFor(policy.MinReady), policy.ProgressDeadline)
	}
	for _, state := range spec.PauseWhile {
		add("pauseWhile %s", state)
	}
	at, open := policy.Open(b.Now)
	switch {
	case policy.Blocked != nil:
		add("no window: %s; no replacement is started", policy.Blocked.Message)
	case !open:
		add("windows: closed until %s", at.UTC().Format(time.RFC3339))
	case !at.IsZero():
		add("windows: open until %s", at.UTC().Format(time.RFC3339))
	}
	if ptr.Deref(spec.Paused, false) {
		add("paused: no replacement is started")
	}
	if rolling := meta.FindStatusCondition(b.pool.Status.Conditions, v1beta1.ConditionRollingOut); rolling != nil &&
		rolling.Status == metav1.ConditionTrue && rolling.Reason != v1beta1.ReasonRollingOut {
		add("now: %s: %s", rolling.Reason, rolling.Message)
	}
	return lines
}

// readyFor describes Nodes that are Ready for so long.
func readyFor(d time.Duration) string {
	if d == 0 {
		return "Ready"
	}
	return "Ready for " + d.String()
}

func shardNames(pool *v1beta1.NstanceMachinePool) []string {
	names := make([]string, len(pool.Spec.Shards))
	for i, shard := range pool.Spec.Shards {
		names[i] = string(shard)
	}
	return names
}

// replacesAny reports whether an instance is outdated, or becomes outdated by the plan.
func (p *Plan) replacesAny() bool {
	for _, shard := range p.Shards {
		if len(shard.Replaced) > 0 {
			return true
		}
	}
	return p.changesInstances()
}
