// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"context"
	"path/filepath"
)

// DevProduct builds nstance-operator, an nstance-server without AWS, whose SDK takes longest
// to compile, and kubectl-nstance, and returns their paths. They are not the programs that
// tests run.
func (b Builder) DevProduct(ctx context.Context) (operator, server, plugin string, err error) {
	b.flags = append(b.flags, "-tags=noaws")
	b.CacheDir = filepath.Join(b.cache(), "dev")
	paths, err := b.Programs(ctx, operatorProgram, serverProgram, pluginProgram)
	return paths[operatorProgram], paths[serverProgram], paths[pluginProgram], err
}
