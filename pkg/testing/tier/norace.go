// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

//go:build !race

package tier

// Race reports whether the race detector is on.
const Race = false
