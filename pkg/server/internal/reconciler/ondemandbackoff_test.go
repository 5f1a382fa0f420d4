// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/instance"
)

// TestManyOnDemandRequestsWithoutCapacity: each new request tries one, not all that wait.
func TestManyOnDemandRequestsWithoutCapacity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, newConfig())
		s.scale(workersKey, 0)
		s.cloud.rejectCalls(noCreates)
		for range 100 {
			s.onDemand(workersKey, func(*instance.Record) {})
		}
		assert.LessOrEqual(t, len(s.cloud.takeCalls()), 10)
		// Another kind is tried at once.
		s.onDemand(workersKey, func(record *instance.Record) { record.InstanceType = "large" })
		s.wantCalls("create default/workers")
		s.cloud.rejectCalls(func(call) error { return nil })
		s.pass(2 * maxOnDemandDelay)
		assert.Len(t, s.cloud.ids(workersKey), 101)
	})
}
