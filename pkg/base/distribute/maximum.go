// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

// ShareMaximum divides how many instances of a pool may be of a kind among its shards. It gives one
// instance after the other to the shards in turn, in their order, and passes over a shard whose share
// is as large as its size: what does not fit on a shard goes to the next shard with room. So a base
// of 2 is 1, 1 and 0 on three shards of one instance each.
//
// A shard with a kept share keeps it, whatever its size, and the others divide the rest. kept is nil,
// or has an entry for each shard, which is nil for the shards that divide the rest.
//
// The shares of a larger maximum are not smaller, and they depend on nothing but the arguments: a
// share does not move while the sizes stay.
func ShareMaximum(maximum int32, sizes []int32, kept []*int32) []int32 {
	shares, rest := make([]int32, len(sizes)), maximum
	var open []int
	for i, size := range sizes {
		switch {
		case kept != nil && kept[i] != nil:
			shares[i] = *kept[i]
			rest -= max(min(shares[i], size), 0)
		case size > 0:
			open = append(open, i)
		}
	}
	// The open shards have equal shares. They grow together, up to the next of their sizes.
	for rest > 0 && len(open) > 0 {
		step := max(rest/int32(len(open)), 1)
		for _, i := range open {
			step = min(step, sizes[i]-shares[i])
		}
		var next []int
		for _, i := range open {
			given := min(step, rest)
			shares[i] += given
			rest -= given
			if shares[i] < sizes[i] {
				next = append(next, i)
			}
		}
		open = next
	}
	return shares
}
