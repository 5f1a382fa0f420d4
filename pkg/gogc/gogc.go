// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Package gogc sets the default of GOGC for the operators.
package gogc

import (
	"os"
	"runtime/debug"
)

// percent is the default. Most of the heap of an operator is caches, and 100 would let it
// grow to twice their size. Collecting more often costs little: with 1,000 pools being
// created it is 2 % of the processor time.
const percent = 25

// SetDefault sets the percentage by which the heap may grow before it is collected, unless
// the environment does.
func SetDefault() {
	if _, set := os.LookupEnv("GOGC"); !set {
		debug.SetGCPercent(percent)
	}
}
