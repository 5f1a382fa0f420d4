// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolplan

import (
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/distribute"
)

// ShardCandidates returns spec.candidates of the shard groups that get sizes, in the order of the
// shards. A percentage becomes a number of the pool first, because 30 % of each of many shards of one
// instance would be all of them. It is a percentage of the sum of the sizes: during a scale-down in
// steps the base shrinks with the sizes, not before them.
//
// A shard that is not configured keeps the shares of its shard group, as it keeps its size.
func (p *Pool) ShardCandidates(sizes []int32) [][]v1beta1.ShardCandidate {
	candidates := make([][]v1beta1.ShardCandidate, len(sizes))
	for _, candidate := range p.Spec.Candidates {
		var shares []int32
		if candidate.MaxReplicas != nil {
			shares = distribute.ShareMaximum(maximum(candidate.MaxReplicas, distribute.Total(sizes)), sizes, p.keptShares(candidate.Name))
		}
		for i := range candidates {
			shard := v1beta1.ShardCandidate{Name: candidate.Name, InstanceType: candidate.InstanceType, Market: candidate.Market}
			if shares != nil {
				shard.MaxReplicas = &shares[i]
			}
			candidates[i] = append(candidates[i], shard)
		}
	}
	return candidates
}

// keptShares returns the shares of a candidate that fixed shards keep, nil for other shards, and for
// shard groups on which the candidate had no maximum.
func (p *Pool) keptShares(name v1beta1.CandidateName) []*int32 {
	kept := make([]*int32, len(p.Shards))
	for i := range p.Shards {
		if !p.Shards[i].Fixed || p.Groups[i] == nil {
			continue
		}
		written := p.Groups[i].Spec.Candidates
		at := slices.IndexFunc(written, func(c v1beta1.ShardCandidate) bool { return c.Name == name })
		if at >= 0 {
			kept[i] = written[at].MaxReplicas
		}
	}
	return kept
}

// maximum returns a number, or a percentage of instances, which is rounded up.
func maximum(value *intstr.IntOrString, instances int32) int32 {
	scaled, err := intstr.GetScaledValueFromIntOrPercent(value, int(instances), true)
	if err != nil {
		// The CRD has a rule against it.
		return 0
	}
	return int32(max(scaled, 0))
}
