// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

//go:build !race

package cluster

// walks is the number of random walks.
const walks = 210
