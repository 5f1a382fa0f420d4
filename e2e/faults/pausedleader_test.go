// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faults

import (
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/tier"
)

// A leader that was paused while another one led exits when it resumes, and does not send
// the sizes that it knew before.
func TestPausedLeader(t *testing.T) {
	const name = "paused"
	// Each of the two operators leads and is paused.
	pauses := tier.Pick(2, 4)
	leader := runFaultyOperator(t, testcluster.ShortLease...).Process
	standby := env.Component(env.RunStandby(t, testcluster.ShortLease...).Component)
	replicas := int32(6)
	require.NoError(t, env.CreatePoolOnAllShards(t.Context(), name, replicas))
	env.UntilRunning(t, name, replicas)
	losses := env.NewLossChecker(t, name)

	for range pauses {
		// The leader is paused while it scales, and knows this size only.
		env.Scale(t, name, replicas+3)
		thaw := testcluster.Freeze(t, leader)
		replicas += 6
		env.Scale(t, name, replicas)
		env.UntilRunning(t, name, replicas)
		thaw()
		testcluster.UntilExited(t, leader)
		losses.ExpectNone(t)
		testcluster.Start(t, leader)
		leader, standby = standby, leader
	}
	env.UntilRunning(t, name, replicas)
	if seen := losses.ExpectNone(t); seen < pauses*len(shardIDs) {
		t.Errorf("%d calls were checked, want at least one of each shard for each pause", seen)
	}
}
