// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
)

// partitions is the number of partitions.
const partitions = 64

func partitionOf(key string) int {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(key))
	return int(hash.Sum32() % partitions)
}

// ownersOf returns the nodes that have the copies of a partition, by rendezvous hashing.
func ownersOf(partition int, nodes []member, replicas int) []member {
	weight := func(m member) uint64 {
		hash := fnv.New64a()
		fmt.Fprintf(hash, "%s/%d", m.Name, partition)
		return hash.Sum64()
	}
	owners := slices.SortedFunc(slices.Values(nodes), func(a, b member) int {
		return cmp.Or(cmp.Compare(weight(b), weight(a)), cmp.Compare(a.Name, b.Name))
	})
	return owners[:min(replicas, len(owners))]
}
