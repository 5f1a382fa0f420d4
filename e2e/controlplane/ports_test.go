// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package controlplane

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// No port is chosen twice, although no server listens at any of them.
func TestFreePortsAreChosenOnce(t *testing.T) {
	seen := map[int]bool{}
	for range 20 {
		ports, err := FreePorts(10)
		require.NoError(t, err)
		for _, port := range ports {
			assert.False(t, seen[port], "port %d", port)
			seen[port] = true
		}
	}
	lowest, err := portRange()
	require.NoError(t, err)
	for port := range seen {
		assert.True(t, port >= lowest && port < lowest+rangeLength && port < 32768, "port %d", port)
	}
}
