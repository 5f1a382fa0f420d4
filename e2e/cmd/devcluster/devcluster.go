// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"io"
	"path/filepath"

	"nstance.dev/operator/e2e/controlplane"
)

// devcluster is one folder of state, with or without a cluster running on it.
type devcluster struct {
	root string // of the repository
	dir  string
	out  io.Writer
	// machines is set if the nodes of up are containers.
	machines bool
}

// locate finds the repository around the working directory, and the state
// folder in it unless dir names another.
func locate(dir string) (devcluster, error) {
	root, err := controlplane.FindRoot(".")
	if err != nil {
		return devcluster{}, err
	}
	if dir == "" {
		dir = filepath.Join(root, ".dev")
	}
	dir, err = filepath.Abs(dir)
	return devcluster{root: root, dir: dir}, err
}
