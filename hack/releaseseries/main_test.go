// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSeriesOfReleases(t *testing.T) {
	file := filepath.Join(t.TempDir(), "metadata.yaml")
	require.NoError(t, os.WriteFile(file, []byte(`apiVersion: clusterctl.cluster.x-k8s.io/v1alpha3
kind: Metadata
releaseSeries:
  - {major: 0, minor: 1, contract: v1beta2}
  - {major: 1, minor: 0, contract: v1beta2}
  - {major: 1, minor: 1}
`), 0o600))
	for _, release := range []string{"v0.1.0", "v0.1.7", "v1.0.0-rc.1", "v0.1.0-3-g1234567-dirty"} {
		assert.NoError(t, check(release, file), release)
	}
	for _, release := range []string{"v0.2.0", "v1.1.0", "v2.0.0"} {
		assert.ErrorContains(t, check(release, file), "no series of "+release, release)
	}
	assert.ErrorContains(t, check("v0.2.3", file), "- major: 0\n    minor: 2\n    contract: v1beta2")
	for _, release := range []string{"", "0.1.0", "v0.1", "latest"} {
		assert.ErrorContains(t, check(release, file), "no semantic version", release)
	}
	assert.ErrorIs(t, check("v0.1.0", file+".missing"), os.ErrNotExist)
}

func TestTheFirstReleaseHasASeries(t *testing.T) {
	require.NoError(t, check("v0.1.0", filepath.Join("..", "..", "manifests", "release", "metadata.yaml")))
}
