// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package previous

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/inputs"
)

// Input is the name of the previous version among the inputs of a suite of tests. Its digest
// is Revision.
const Input = "previous"

// Version is the previous version of the project.
type Version struct {
	// Source is the folder with its files.
	Source string
	// Operator and Server are its programs.
	Operator, Server string
}

// Build gets the files of the previous version, and builds its programs unless make has built
// them.
func Build(ctx context.Context, root string) (Version, error) {
	revision, err := Revision(ctx, root)
	if err != nil {
		return Version{}, err
	}
	cache := filepath.Join(root, "e2e", ".cache", "previous", revision)
	v := Version{
		Source:   filepath.Join(cache, "source"),
		Operator: filepath.Join(cache, "nstance-operator"),
		Server:   filepath.Join(cache, "nstance-server"),
	}
	if built, err := inputs.Built(Input); built || err != nil {
		return v, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return Version{}, fmt.Errorf("build the previous version: %w", err)
	}
	if err := source(ctx, root, revision, v.Source); err != nil {
		return Version{}, err
	}
	builder := controlplane.Builder{Root: v.Source, CacheDir: cache, Progress: os.Stderr}
	v.Operator, v.Server, err = builder.Product(ctx)
	return v, err
}
