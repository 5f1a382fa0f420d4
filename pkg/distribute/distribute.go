// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package distribute spreads the replicas of a pool over its shards.
package distribute

// Even gives each of the given number of shards an equal share of replicas;
// what is left over goes one each to the shards listed first. The result has
// one entry per shard in the order the shards are listed, so that an
// administrator decides by that order which zone gets the odd machine: 5
// replicas over shards [b, a] are 3 for b and 2 for a.
//
// Negative replicas count as none. Even returns nil when shards is not
// positive.
func Even(replicas int32, shards int) []int32 {
	if shards <= 0 {
		return nil
	}
	replicas = max(replicas, 0)
	share, rest := replicas/int32(shards), int(replicas%int32(shards))
	sizes := make([]int32, shards)
	for i := range sizes {
		sizes[i] = share
		if i < rest {
			sizes[i]++
		}
	}
	return sizes
}
