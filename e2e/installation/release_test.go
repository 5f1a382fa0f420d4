// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package installation

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
)

// The manifests of a release name an image in a registry by its digest. A tag is refused.
func TestReleaseNamesTheImageByItsDigest(t *testing.T) {
	root, err := controlplane.FindRoot(".")
	require.NoError(t, err)
	repository := t.TempDir()
	release := func(image string) (string, error) {
		output, err := exec.CommandContext(t.Context(), "make", "-C", root, "release", "VERSION="+releaseVersion,
			"RELEASE_DIR="+repository, "RELEASE_IMAGE="+image).CombinedOutput()
		return string(output), err
	}
	output, err := release("registry.example.com/nstance-operator:v0.1.0")
	require.Error(t, err)
	assert.Contains(t, output, "must be NAME@sha256:DIGEST")

	image := "registry.example.com:5000/nstance-operator@sha256:" + strings.Repeat("0a", 32)
	output, err = release(image)
	require.NoError(t, err, output)
	components, err := os.ReadFile(filepath.Join(repository, "infrastructure-nstance", releaseVersion, "infrastructure-components.yaml"))
	require.NoError(t, err)
	assert.Contains(t, string(components), "image: "+image+"\n")
}
