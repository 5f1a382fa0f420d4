// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The definition that the command prints is the one that is installed.
func TestCRDIsTheShippedFile(t *testing.T) {
	shipped, err := os.ReadFile("../../manifests/marekvs/crd/marekvs.io_marekvsclusters.yaml")
	require.NoError(t, err)
	var printed bytes.Buffer
	cmd := command()
	cmd.SetOut(&printed)
	cmd.SetArgs([]string{"crd"})
	require.NoError(t, cmd.Execute())
	assert.Equal(t, string(shipped), printed.String())
}
