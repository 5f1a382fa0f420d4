// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package docker

import (
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/provider"
)

// TestContainersThatMayReturn: only a container that has exited may be started again, by a user or by
// a daemon that restarts.
func TestContainersThatMayReturn(t *testing.T) {
	for _, state := range []container.ContainerState{
		container.StateCreated, container.StateRunning, container.StatePaused, container.StateRestarting,
		container.StateRemoving, container.StateExited, container.StateDead,
	} {
		assert.Equal(t, state == container.StateExited, status{state: state}.vm(provider.Shard{}).MayReturn, string(state))
	}
}
