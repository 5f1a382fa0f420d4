// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

// Command devbuild builds devcluster. It compiles in a second, and says how long it takes
// until devcluster has built the control plane too.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"nstance.dev/operator/e2e/gobuild"
)

func main() {
	if err := build(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "devbuild:", err)
		os.Exit(1)
	}
}

// build must be called in the folder e2e.
func build(ctx context.Context) error {
	devcluster := gobuild.Build{
		Name:     "devcluster",
		Output:   filepath.Join("..", ".dev", "bin", "devcluster"),
		Flags:    []string{"-ldflags=-s -w"},
		Packages: []string{"./cmd/devcluster"},
	}
	if _, err := os.Stat(filepath.Join(".cache", "stamp.json")); err == nil {
		return devcluster.Run(ctx, os.Stdout) // the control plane is built
	}
	return devcluster.Run(ctx, os.Stdout, gobuild.Build{
		Dir:      filepath.Join("cmd", "kube"),
		Packages: []string{".", "sigs.k8s.io/cluster-api/core", "sigs.k8s.io/kwok/cmd/kwok"},
	})
}
