// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package distribute divides the replicas of a pool among its shards, and has the rule
// which instances a scale-down removes.
//
// The rule is used in several places. Controller machinepool writes the result of
// Scale into the shard groups of a pool with Machines. Controller poolmember deletes
// the Machines of the selected instances. Controller machine deletes an instance on
// its shard only after the scale-down is planned and sent, because the shard would
// replace it otherwise. The server terminates the selected instances before others.
package distribute

// Spread returns sizes that add up to replicas: a fixed shard keeps its size, and the
// others get equal shares of the rest (see Even).
func Spread(shards []Shard, replicas int32) []int32 {
	sizes, rest, variable := Sizes(shards), max(replicas, 0), 0
	for _, shard := range shards {
		if shard.Fixed {
			rest -= shard.Size
		} else {
			variable++
		}
	}
	shares := Even(rest, variable)
	for i, shard := range shards {
		if !shard.Fixed {
			sizes[i], shares = shares[0], shares[1:]
		}
	}
	return sizes
}

// Even gives each of the given number of shards an equal share of replicas. The
// shards listed first get the remainder, one each. The result has one entry per shard
// in the order of the shards, so that an administrator decides with that order which
// zone gets the odd instance: 5 replicas on shards [b, a] are 3 for b and 2 for a.
//
// Negative replicas count as 0. Even returns nil if shards is not positive.
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
