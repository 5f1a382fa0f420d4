// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controllers

import (
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/controller"
	"nstance.dev/operator/pkg/operator/shard"
)

// ShardGroupSettings returns all settings of a shard group as the shard gets them: those that are
// copied from the pool, and the candidates, which have the shares of the shard.
func ShardGroupSettings(spec *v1beta1.NstanceShardGroupSpec) shard.GroupSettings {
	settings := ShardSettings(spec.GroupSettings)
	for _, candidate := range spec.Candidates {
		settings.Candidates = append(settings.Candidates, shard.Candidate{
			Name: string(candidate.Name), InstanceType: string(candidate.InstanceType), Market: string(candidate.Market),
			MaxInstances: candidate.MaxReplicas,
		})
	}
	return settings
}

// PoolCandidates returns the candidates of a pool whose group is imported from shards with these
// settings, and false if it has none for all of them: the names, instance types and markets differ,
// their order, or which of them have a maximum. The maxima are the sums over the shards, because the
// shards have shares of them. A percentage is imported as a number.
func PoolCandidates(shards []shard.GroupSettings) (candidates []v1beta1.Candidate, same bool) {
	if len(shards) == 0 {
		return nil, true
	}
	for i, candidate := range shards[0].Candidates {
		imported := v1beta1.Candidate{
			Name: v1beta1.CandidateName(candidate.Name), InstanceType: v1beta1.InstanceType(candidate.InstanceType), Market: v1beta1.Market(candidate.Market),
		}
		var sum int64
		for _, settings := range shards {
			if len(settings.Candidates) != len(shards[0].Candidates) {
				return nil, false
			}
			other := settings.Candidates[i]
			sum += int64(ptr.Deref(other.MaxInstances, 0))
			if (other.MaxInstances == nil) != (candidate.MaxInstances == nil) {
				return nil, false
			}
			other.MaxInstances = candidate.MaxInstances
			if !other.Equal(candidate) {
				return nil, false
			}
		}
		if candidate.MaxInstances != nil {
			// No pool has more instances.
			imported.MaxReplicas = ptr.To(intstr.FromInt32(int32(min(sum, v1beta1.MaxReplicas))))
		}
		candidates = append(candidates, imported)
	}
	for _, settings := range shards {
		if len(settings.Candidates) != len(candidates) {
			return nil, false
		}
	}
	return candidates, true
}

// ReportedCandidates returns status.candidates of a shard group within the limits of its definition:
// texts are cut, and a candidate without a name is left out.
func ReportedCandidates(use []shard.CandidateUse) []v1beta1.CandidateUse {
	var reported []v1beta1.CandidateUse
	for _, used := range use[:min(len(use), v1beta1.MaxCandidates)] {
		if used.Name == "" {
			continue
		}
		reported = append(reported, v1beta1.CandidateUse{
			Name:         controller.Truncate(used.Name, v1beta1.MaxCandidateName),
			InstanceType: controller.Truncate(used.InstanceType, v1beta1.MaxReportedLength),
			Market:       controller.Truncate(used.Market, v1beta1.MaxCandidateName),
			Replicas:     max(used.Instances, 0),
			Unavailable:  controller.Truncate(used.Unavailable, v1beta1.MaxCandidateMessage),
		})
	}
	return reported
}
