// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package poolplan

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/randfill"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/base/distribute"
	"nstance.dev/operator/pkg/testing/settingstest"
)

func withCandidates(shards int, candidates ...v1beta1.Candidate) *Pool {
	return &Pool{
		NstanceMachinePool: &v1beta1.NstanceMachinePool{Spec: v1beta1.NstanceMachinePoolSpec{Candidates: candidates}},
		Shards:             make([]distribute.Shard, shards), Groups: make([]*v1beta1.NstanceShardGroup, shards),
	}
}

// sharesOf returns the shares of the first candidate, -1 for no maximum.
func sharesOf(candidates [][]v1beta1.ShardCandidate) []int32 {
	var shares []int32
	for _, of := range candidates {
		shares = append(shares, ptr.Deref(of[0].MaxReplicas, -1))
	}
	return shares
}

func TestShardCandidates(t *testing.T) {
	for name, test := range map[string]struct {
		maximum *intstr.IntOrString
		sizes   []int32
		want    []int32
	}{
		"a number":   {ptr.To(intstr.FromInt32(2)), []int32{1, 1, 1}, []int32{1, 1, 0}},
		"no maximum": {nil, []int32{1, 1, 1}, []int32{-1, -1, -1}},
		"0":          {ptr.To(intstr.FromInt32(0)), []int32{1, 1}, []int32{0, 0}},
		"a percentage of the pool, not of each shard": {ptr.To(intstr.FromString("30%")), []int32{1, 1, 1, 1}, []int32{1, 1, 0, 0}},
		"100 %":                              {ptr.To(intstr.FromString("100%")), []int32{3, 2}, []int32{3, 2}},
		"0 %":                                {ptr.To(intstr.FromString("0%")), []int32{3, 2}, []int32{0, 0}},
		"what the definition does not allow": {ptr.To(intstr.FromString("many")), []int32{3, 2}, []int32{0, 0}},
	} {
		pool := withCandidates(len(test.sizes), v1beta1.Candidate{Name: "base", MaxReplicas: test.maximum}, v1beta1.Candidate{Name: "rest"})
		got := pool.ShardCandidates(test.sizes)
		assert.Equal(t, test.want, sharesOf(got), name)
		for _, of := range got {
			assert.Equal(t, v1beta1.ShardCandidate{Name: "rest"}, of[1], name)
		}
	}
	assert.Equal(t, [][]v1beta1.ShardCandidate{nil, nil}, withCandidates(2).ShardCandidates([]int32{1, 1}))
}

// A shard that is not configured keeps its share as it keeps its size, and the others divide the rest.
// A share that it does not have yet is divided.
func TestAFixedShardKeepsItsShare(t *testing.T) {
	pool := withCandidates(3, v1beta1.Candidate{Name: "base", MaxReplicas: ptr.To(intstr.FromInt32(4))}, v1beta1.Candidate{Name: "rest"})
	pool.Shards[0].Fixed = true
	pool.Groups[0] = &v1beta1.NstanceShardGroup{Spec: v1beta1.NstanceShardGroupSpec{
		Candidates: []v1beta1.ShardCandidate{{Name: "other", MaxReplicas: ptr.To[int32](1)}, {Name: "base", MaxReplicas: ptr.To[int32](3)}},
	}}
	pool.Groups[1] = &v1beta1.NstanceShardGroup{Spec: pool.Groups[0].Spec}
	assert.Equal(t, []int32{3, 1, 0}, sharesOf(pool.ShardCandidates([]int32{3, 3, 3})))
	pool.Groups[0].Spec.Candidates = nil
	assert.Equal(t, []int32{2, 1, 1}, sharesOf(pool.ShardCandidates([]int32{3, 3, 3})))
}

// A field of a candidate that is forgotten here would never reach a shard group.
func TestEveryFieldOfACandidateReachesTheShardGroups(t *testing.T) {
	var candidate v1beta1.Candidate
	settingstest.Fill(&candidate, func(i *intstr.IntOrString, _ randfill.Continue) { *i = intstr.FromInt32(2) })
	got := reflect.ValueOf(withCandidates(1, candidate).ShardCandidates([]int32{5})[0][0])
	fields := reflect.TypeFor[v1beta1.Candidate]()
	for i := range fields.NumField() {
		field := got.FieldByName(fields.Field(i).Name)
		assert.True(t, field.IsValid() && !field.IsZero(), fields.Field(i).Name)
	}
	assert.Equal(t, fields.NumField(), got.NumField())
}
