// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storetest

import (
	"cmp"
	"hash/fnv"
	"slices"
	"strconv"
)

const (
	// Partitions is the number of partitions of the data.
	Partitions = 16
	// Copies is the number of copies of each partition.
	Copies = 2
)

// Volume is what a node has stored. It outlives the node.
type Volume struct{ copies [Partitions]bool }

// Data is the volumes of a cluster, by the ordinals of their nodes.
type Data map[int32]*Volume

func (d Data) create(ordinal int32) {
	if d[ordinal] == nil {
		d[ordinal] = &Volume{}
	}
}

// weights order the nodes for each partition.
var weights = func() (all [Partitions][32]uint32) {
	for p := range all {
		for ordinal := range all[p] {
			h := fnv.New32a()
			_, _ = h.Write([]byte(strconv.Itoa(p) + "/" + strconv.Itoa(ordinal*7919)))
			all[p][ordinal] = h.Sum32()
		}
	}
	return all
}()

// owners returns those of the nodes that a partition belongs to.
func owners(online []*Node, partition int) []*Node {
	owners := make([]*Node, 0, Copies+1)
	for _, n := range online {
		at, _ := slices.BinarySearchFunc(owners, n, func(a, b *Node) int {
			return cmp.Compare(weights[partition][b.Ordinal], weights[partition][a.Ordinal])
		})
		owners = slices.Insert(owners, at, n)
		owners = owners[:min(Copies, len(owners))]
	}
	return owners
}

// Fill gives every partition to its owners among the nodes.
func (d Data) Fill(online []*Node) {
	for p := range Partitions {
		for _, owner := range owners(online, p) {
			d.create(owner.Ordinal)
			d[owner.Ordinal].copies[p] = true
		}
	}
}

// has reports whether one of the nodes has a partition.
func (d Data) has(nodes []*Node, partition int) bool {
	return slices.ContainsFunc(nodes, func(n *Node) bool { return d[n.Ordinal].copies[partition] })
}

// Fewest returns how many of the nodes have the partition that the fewest have.
func (d Data) Fewest(nodes []*Node) int {
	fewest := len(nodes)
	for p := range Partitions {
		copies := 0
		for _, n := range nodes {
			if d[n.Ordinal] != nil && d[n.Ordinal].copies[p] {
				copies++
			}
		}
		fewest = min(fewest, copies)
	}
	return fewest
}

// FinishRound copies the partitions that the node owned when the round began, drops those
// that all owners have without it, and begins the next round.
func (d Data) FinishRound(n *Node, online []*Node) {
	for _, other := range online {
		d.create(other.Ordinal)
	}
	own := d[n.Ordinal]
	for p := range Partitions {
		if n.owned[p] && !own.copies[p] {
			own.copies[p] = d.has(online, p)
		}
		owners := owners(online, p)
		n.owned[p] = slices.Contains(owners, n)
		if own.copies[p] && !n.owned[p] && len(owners) == Copies &&
			d[owners[0].Ordinal].copies[p] && d[owners[1].Ordinal].copies[p] {
			own.copies[p] = false
		}
	}
	n.Rounds++
}
