// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/server/config"
)

// TestAnInstanceHasTheHashItWasCreatedFrom: its record is written under one configuration,
// and the instance is created later, from another.
func TestAnInstanceHasTheHashItWasCreatedFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.cloud.rejectCalls(noCreates)
		s.scale(workersKey, 1)
		require.Len(t, s.instances.List(workersKey), 1, "records")
		s.reconfigure(withArgs("two"))
		s.cloud.rejectCalls(nil)
		s.pass(time.Minute)
		s.settle()
		s.cloud.takeCalls()
		current := func() string {
			t.Helper()
			list := s.instances.List(workersKey)
			require.Len(t, list, 1)
			return list[0].InfraConfigHash
		}
		group, _ := s.groups.Get(workersKey)
		assert.Equal(t, group.InfraConfigHash, current())
		s.stop()
		s.loseCache()
		s.lead()
		s.pass(time.Hour)
		assert.Equal(t, group.InfraConfigHash, current(), "after a restart")
		assert.Empty(t, s.cloud.takeCalls(), "it has not drifted")
		// With the earlier configuration it has.
		s.reconfigure(func(*config.Config) {})
		s.settle()
		assert.Contains(t, describeCalls(s.cloud.takeCalls()), "create default/workers")
	})
}
