// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

//go:build race

package cluster

// walks is the number of random walks, few because the race detector makes each slow.
const walks = 50
