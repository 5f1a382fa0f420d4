// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package daemon

import (
	"os"
	"runtime/debug"
)

// gogcPercent is the default of GOGC. Most of the heap of an operator is caches, and 100 would let it
// grow to twice their size. Collecting more often costs little: with 1,000 pools being
// created it is 2 % of the processor time.
const gogcPercent = 25

// SetDefaultGOGC sets the percentage by which the heap may grow before it is collected, unless
// the environment does.
func SetDefaultGOGC() {
	if _, set := os.LookupEnv("GOGC"); !set {
		debug.SetGCPercent(gogcPercent)
	}
}
