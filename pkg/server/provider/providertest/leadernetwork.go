// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/deadline"
	"nstance.dev/operator/pkg/server/provider"
)

// LeaderNetworkConfig configures TestLeaderNetwork for one provider. All fields are
// mandatory.
type LeaderNetworkConfig struct {
	// Run runs a test. For a backend in memory it is synctest.Test, so that time passes at
	// once.
	Run func(*testing.T, func(*testing.T))
	// NewBackend returns a backend with an address that no machine has.
	NewBackend func(*testing.T) LeaderNetworkBackend
}

// LeaderNetworkBackend is the cloud that has the address and the machines.
type LeaderNetworkBackend interface {
	// Network returns the address.
	Network() provider.Network
	// Machine returns the LeaderNetwork of a server on a machine.
	Machine(name string) provider.LeaderNetwork
	// Owner returns the machine at which others reach the address now, or "". While the address
	// is being attached, no machine is reached.
	Owner() string
	// DelayAttach makes the next attachment stay in progress for a number of reads,
	// although the interface is in use.
	DelayAttach(reads int)
	// LoseResponses makes the next calls that change something fail after their effect.
	LoseResponses(times int)
	// Changes returns how many calls have changed something since the last time.
	Changes() int
	// Pause calls do once, after the process has sent the next request that changes something,
	// and before the request has its effect.
	Pause(do func())
}

// networkSuite is one test with its backend.
type networkSuite struct {
	LeaderNetworkBackend
	t *testing.T
}

// TestLeaderNetwork tests that the leader network of a provider does what
// provider.LeaderNetwork documents.
func TestLeaderNetwork(t *testing.T, c LeaderNetworkConfig) {
	for _, tc := range []struct {
		name string
		test func(networkSuite)
	}{
		{"the address is assigned once", networkSuite.testAssign},
		{"the address is taken from another machine", networkSuite.testTake},
		{"an interface in use is not attached", networkSuite.testInProgress},
		{"an attachment that takes too long is continued", networkSuite.testStuck},
		{"a lost response is no assignment", networkSuite.testLostResponses},
		{"only the own address is released", networkSuite.testRelease},
		{"only the leader assigns the address", networkSuite.testLease},
		{"a server that continues takes nothing from the next leader", networkSuite.testPaused},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c.Run(t, func(t *testing.T) { tc.test(networkSuite{c.NewBackend(t), t}) })
		})
	}
}

// assign makes a machine assign the address, as often as a server would.
func (s networkSuite) assign(name string) {
	s.t.Helper()
	const attempts = 10
	var err error
	for range attempts {
		if err = s.Machine(name).Assign(s.t.Context(), s.Network()); err == nil {
			assert.Equal(s.t, name, s.Owner(), "who has the address when Assign returns")
			return
		}
	}
	require.NoError(s.t, err, "the last of %d attempts", attempts)
}

func (s networkSuite) testAssign() {
	s.assign("a")
	assert.Positive(s.t, s.Changes())
	// This is another process on the same machine.
	s.assign("a")
	assert.Zero(s.t, s.Changes(), "changes by the second call")
}

func (s networkSuite) testTake() {
	s.assign("a")
	s.assign("b")
	s.assign("a")
	assert.Equal(s.t, "a", s.Owner())
}

func (s networkSuite) testInProgress() {
	s.assign("a")
	s.DelayAttach(5)
	s.assign("b")
}

func (s networkSuite) testStuck() {
	const reads = 15
	s.DelayAttach(reads)
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
	defer cancel()
	require.Error(s.t, s.Machine("a").Assign(ctx, s.Network()), "while the attachment is in progress")
	assert.Empty(s.t, s.Owner())
	s.assign("a")
}

func (s networkSuite) testLostResponses() {
	s.assign("a")
	s.LoseResponses(2)
	s.assign("b")
	s.LoseResponses(1)
	err := s.Machine("b").Release(s.t.Context(), s.Network())
	require.Error(s.t, err)
	require.NoError(s.t, s.Machine("b").Release(s.t.Context(), s.Network()))
	assert.Empty(s.t, s.Owner())
}

func (s networkSuite) testRelease() {
	require.NoError(s.t, s.Machine("b").Release(s.t.Context(), s.Network()), "an address that no machine has")
	s.assign("a")
	s.Changes()
	require.NoError(s.t, s.Machine("b").Release(s.t.Context(), s.Network()), "an address of another machine")
	assert.Zero(s.t, s.Changes())
	assert.Equal(s.t, "a", s.Owner())
	for range 2 {
		require.NoError(s.t, s.Machine("a").Release(s.t.Context(), s.Network()))
		assert.Empty(s.t, s.Owner())
	}
	s.assign("b")
}

func (s networkSuite) testLease() {
	s.assign("a")
	s.Changes()
	require.Error(s.t, s.Machine("b").Assign(expired(s.t), s.Network()))
	assert.Zero(s.t, s.Changes(), "changes by a server that does not lead")
	assert.Equal(s.t, "a", s.Owner())
	// Its own address is released nevertheless.
	require.NoError(s.t, s.Machine("a").Release(s.t.Context(), s.Network()))
}

// testPaused pauses a server after its check of the leadership. Each later request must be
// refused unless the state is still as it was read.
func (s networkSuite) testPaused() {
	for _, owned := range []bool{false, true} {
		if owned {
			s.assign("c")
		}
		paused := false
		leads := true
		ctx := deadline.WithLease(s.t.Context(), func() time.Time {
			if leads {
				return time.Now().Add(time.Hour)
			}
			return time.Now().Add(-time.Second)
		})
		s.Pause(func() {
			paused, leads = true, false
			s.assign("b")
		})
		require.Error(s.t, s.Machine("a").Assign(ctx, s.Network()))
		assert.True(s.t, paused)
		assert.Equal(s.t, "b", s.Owner(), "owned before: %t", owned)
		require.NoError(s.t, s.Machine("a").Release(s.t.Context(), s.Network()))
		assert.Equal(s.t, "b", s.Owner())
		require.NoError(s.t, s.Machine("b").Release(s.t.Context(), s.Network()))
	}
}
