// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"slices"
	"testing"
)

// fixed returns shards whose listed indexes are fixed.
func fixed(shards []Shard, indexes ...int) []Shard {
	for _, i := range indexes {
		shards[i].Fixed = true
	}
	return shards
}

func TestSpreadKeepsFixedShards(t *testing.T) {
	for name, test := range map[string]struct {
		sizes    []int32
		fixed    []int
		replicas int32
		want     []int32
	}{
		"none is fixed":             {[]int32{9, 0, 0}, nil, 10, []int32{4, 3, 3}},
		"the first is fixed":        {[]int32{2, 0, 0}, []int{0}, 9, []int32{2, 4, 3}},
		"the last is fixed":         {[]int32{0, 0, 2}, []int{2}, 9, []int32{4, 3, 2}},
		"all are fixed":             {[]int32{1, 2, 3}, []int{0, 1, 2}, 9, []int32{1, 2, 3}},
		"fixed ones have all":       {[]int32{5, 1, 1}, []int{0}, 4, []int32{5, 0, 0}},
		"negative replicas":         {[]int32{5, 1, 1}, []int{0}, -4, []int32{5, 0, 0}},
		"sizes of an even division": {[]int32{4, 3, 3}, []int{0}, 10, []int32{4, 3, 3}},
	} {
		if got := spread(fixed(shardsOf(test.sizes, nil), test.fixed...), test.replicas); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}

func TestScaleKeepsFixedShards(t *testing.T) {
	for name, test := range map[string]struct {
		fixed      []int
		replicas   int32
		candidates []Candidate
		want       []int32
	}{
		"scaled up":                         {[]int{1}, 12, nil, []int32{6, 1, 5}},
		"scaled down":                       {[]int{0}, 6, nil, []int32{4, 1, 1}},
		"scaled below the fixed":            {[]int{0}, 2, nil, []int32{4, 0, 0}},
		"all are fixed":                     {[]int{0, 1, 2}, 12, nil, []int32{4, 1, 5}},
		"a candidate is on a fixed shard":   {[]int{0}, 9, candidatesOn(0), []int32{3, 1, 5}},
		"one candidate, two are to be less": {[]int{0}, 8, candidatesOn(0), []int32{3, 1, 4}},
	} {
		shards := fixed(shardsOf([]int32{4, 1, 5}, []int32{0, 0, 0}), test.fixed...)
		got, _ := scale(shards, test.replicas, test.candidates)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}
