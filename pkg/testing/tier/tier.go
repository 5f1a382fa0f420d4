// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package tier says how large a test is run, and with which seeds. make test runs every
// guarantee once, at the smallest size that shows it, with the same seeds each time. make
// test-full sets NSTANCE_TEST_FULL to the number of its run: full sizes, and new random seeds.
package tier

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// Environment variables. The test cache of Go tracks the variables that a test reads.
const (
	// FullVariable is not empty if tests run at their full size.
	FullVariable = "NSTANCE_TEST_FULL"
	// SeedVariable overrides the seeds, to repeat a random test that failed.
	SeedVariable = "NSTANCE_TEST_SEED"
)

// Full reports whether tests run at their full size.
func Full() bool { return os.Getenv(FullVariable) != "" }

// Pick returns small in make test, and full in make test-full.
func Pick[T any](small, full T) T {
	if Full() {
		return full
	}
	return small
}

// Seeds returns n seeds for random tests and logs them: 0 to n-1 in make test, random ones
// in make test-full, and the seed in NSTANCE_TEST_SEED alone if it is set.
func Seeds(t testing.TB, n int) []uint64 {
	t.Helper()
	if text := os.Getenv(SeedVariable); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("%s=%q must be an unsigned number of 64 bits: %v", SeedVariable, text, err)
		}
		return []uint64{seed}
	}
	seeds := make([]uint64, n)
	for i := range seeds {
		seeds[i] = uint64(i)
		if Full() {
			seeds[i] = rand.Uint64()
		}
	}
	t.Logf("seeds %v; repeat one with %s=SEED", seeds, SeedVariable)
	return seeds
}
