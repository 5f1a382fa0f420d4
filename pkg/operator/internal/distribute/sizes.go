// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package distribute

import (
	"math"
	"slices"
)

// Total returns the sum of sizes.
func Total(sizes []int32) int32 {
	var total int32
	for _, size := range sizes {
		total += size
	}
	return total
}

// Surplus returns how many instances a scale-down from sizes to replicas removes, 0
// if it is none. Negative replicas count as 0.
func Surplus(sizes []int32, replicas int32) int32 {
	return max(Total(sizes)-max(replicas, 0), 0)
}

// grow adds n to sizes, one by one to the smallest, and among equal ones to the one
// listed first. Sizes that Even returns become sizes that Even returns; other sizes
// get closer to that with every growth.
func grow(sizes []int32, n int32) {
	for n > 0 && len(sizes) > 0 {
		// All of the smallest grow together, up to the next larger size.
		smallest, next, count := slices.Min(sizes), int32(math.MaxInt32), int32(0)
		for _, size := range sizes {
			if size == smallest {
				count++
			} else {
				next = min(next, size)
			}
		}
		step := max(min(next-smallest, n/count), 1)
		for i := range sizes {
			if sizes[i] == smallest && n > 0 {
				sizes[i] += step
				n -= step
			}
		}
	}
}

// shrink removes up to n from sizes, one by one from the largest, and among equal
// ones from the one listed last. It removes at most limits[i] from sizes[i], and no
// size becomes negative. It returns how much it removed.
func shrink(sizes, limits []int32, n int32) (removed int32) {
	limits = slices.Clone(limits)
	for removed < n {
		// All of the largest shrink together, down to the next smaller size or until
		// one of them reaches its limit.
		var largest, next, count int32
		for i, size := range sizes {
			if limits[i] > 0 {
				largest = max(largest, size)
			}
		}
		if largest == 0 {
			break
		}
		step := largest
		for i, size := range sizes {
			switch {
			case limits[i] <= 0:
			case size == largest:
				count++
				step = min(step, limits[i])
			default:
				next = max(next, size)
			}
		}
		step = max(min(step, largest-next, (n-removed)/count), 1)
		for i := len(sizes) - 1; i >= 0; i-- {
			if sizes[i] == largest && limits[i] > 0 && removed < n {
				sizes[i] -= step
				limits[i] -= step
				removed += step
			}
		}
	}
	return removed
}
