// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package source_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/testing/source"
)

func TestRootIsFoundFromAnyFolder(t *testing.T) {
	want, err := filepath.Abs(filepath.Join("..", "..", ".."))
	require.NoError(t, err)
	got, err := source.Root("go.*", "pkg/testing/source/*.go")
	require.NoError(t, err)
	assert.Equal(t, want, got)
}

// Otherwise the test cache would not track a file that was renamed.
func TestInputsMustExist(t *testing.T) {
	_, err := source.Root("go.mod", "pkg/testing/source/*.c")
	assert.ErrorContains(t, err, "no file is pkg/testing/source/*.c in ")
}

func TestErrorsOfTheGoCommandAreReported(t *testing.T) {
	_, err := source.Go("", "build", "./missing")
	assert.ErrorContains(t, err, "missing: directory not found")
}
