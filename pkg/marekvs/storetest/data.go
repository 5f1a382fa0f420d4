// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package storetest

import (
	"cmp"
	"hash/fnv"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strconv"
)

const (
	// Partitions is the number of partitions of the data. The store has 4096.
	Partitions = 16
	// Copies is the usual number of copies of each partition.
	Copies = 2
	// maxNodes is the largest number of nodes.
	maxNodes = 32
	// strandedRounds: in every third round a node also compares partitions that it holds and
	// does not own (marekvs-repl/src/lib.rs:1489).
	strandedRounds = 3
)

// chunks is a set of writes to a partition. Copies are merged record by record, so two copies that
// each miss a write are complete together.
type chunks uint64

// Volume has what a node has stored. It outlives the node.
type Volume struct {
	copies [Partitions]chunks
	// active is true once a node was active with the volume.
	active bool
}

// Data has the volumes of a cluster, and moves copies between its nodes.
type Data struct {
	// Factor is the number of copies of each partition.
	Factor int
	// CopySteps is how many steps it takes to copy one partition. A node copies one partition at
	// a time.
	CopySteps int

	random  *rand.Rand
	volumes map[int32]*Volume
	// written has every write that was acknowledged.
	written [Partitions]chunks
	copying []*transfer
	// owners has the owners for the nodes in ownersOf, a set of ordinals, and for ownersFactor.
	owners       [Partitions][]int32
	ownersOf     uint32
	ownersFactor int
}

// transfer is a partition on its way to a node.
type transfer struct {
	partition int
	from, to  *Node
	bootstrap bool
	left      int
}

// NewData returns a cluster without volumes.
func NewData(random *rand.Rand, factor int) *Data {
	return &Data{Factor: factor, random: random, volumes: map[int32]*Volume{}}
}

// Ordinals returns the ordinals of the volumes.
func (d *Data) Ordinals() []int32 {
	ordinals := make([]int32, 0, len(d.volumes))
	for ordinal := range d.volumes {
		ordinals = append(ordinals, ordinal)
	}
	slices.Sort(ordinals)
	return ordinals
}

// Delete deletes a volume.
func (d *Data) Delete(ordinal int32) { delete(d.volumes, ordinal) }

// Open starts a node on its volume. A node whose volume was in use is a returning member: it
// never bootstraps a partition, only rounds fill it (marekvs-repl/src/lib.rs:512,939).
func (d *Data) Open(n *Node) {
	if d.volumes[n.Ordinal] == nil {
		d.volumes[n.Ordinal] = &Volume{}
	}
	n.volume = d.volumes[n.Ordinal]
	n.returning = n.volume.active
	n.bootstrapped = [Partitions]bool{}
}

// Fill makes the nodes active, and stores every partition on its owners, as if clients had
// written data.
func (d *Data) Fill(nodes []*Node) {
	for _, n := range nodes {
		n.activate()
	}
	for p := range Partitions {
		d.Write(p, nodes)
	}
}

// Write writes to a partition. Its owners store the write at once.
func (d *Data) Write(partition int, active []*Node) {
	chunk := chunks(1) << bits.Len64(uint64(d.written[partition]))
	owners := d.ownersOn(active)[partition]
	if chunk == 0 || len(owners) == 0 {
		return
	}
	d.written[partition] |= chunk
	for _, owner := range owners {
		d.volumes[owner].copies[partition] |= chunk
	}
}

// Lost returns the partitions with a write that is on none of the volumes of the ordinals below
// size, except those in without.
func (d *Data) Lost(size int32, without ...int32) []int {
	var lost []int
	for p := range Partitions {
		var all chunks
		for ordinal, volume := range d.volumes {
			if ordinal < size && !slices.Contains(without, ordinal) {
				all |= volume.copies[p]
			}
		}
		if all != d.written[p] {
			lost = append(lost, p)
		}
	}
	return lost
}

// Fewest returns the lowest number of complete copies of a partition on the nodes.
func (d *Data) Fewest(nodes []*Node) int {
	fewest := len(nodes)
	for p := range Partitions {
		copies := 0
		for _, n := range nodes {
			if n.volume.copies[p] == d.written[p] {
				copies++
			}
		}
		fewest = min(fewest, copies)
	}
	return fewest
}

// weights order the nodes for each partition.
var weights = func() (all [Partitions][maxNodes]uint32) {
	for p := range all {
		for ordinal := range all[p] {
			h := fnv.New32a()
			_, _ = h.Write([]byte(strconv.Itoa(p) + "/" + strconv.Itoa(ordinal*7919)))
			all[p][ordinal] = h.Sum32()
		}
	}
	return all
}()

// ownersOn returns the ordinals of the owners of each partition, by rendezvous hashing over the
// active nodes (marekvs-cluster/src/placement.rs:22). A joining node owns nothing.
func (d *Data) ownersOn(active []*Node) *[Partitions][]int32 {
	set := uint32(0)
	for _, n := range active {
		set |= 1 << n.Ordinal
	}
	if set == d.ownersOf && d.Factor == d.ownersFactor {
		return &d.owners
	}
	d.ownersOf, d.ownersFactor = set, d.Factor
	for p := range Partitions {
		d.owners[p] = owners(set, p, d.Factor)
	}
	return &d.owners
}

func owners(set uint32, partition, factor int) []int32 {
	ordinals := make([]int32, 0, maxNodes)
	for ordinal := range int32(maxNodes) {
		if set&(1<<ordinal) != 0 {
			ordinals = append(ordinals, ordinal)
		}
	}
	slices.SortFunc(ordinals, func(a, b int32) int { return cmp.Compare(weights[partition][b], weights[partition][a]) })
	return slices.Clone(ordinals[:min(factor, len(ordinals))])
}
