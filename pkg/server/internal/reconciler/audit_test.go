// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package reconciler

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/base/audit"
	"nstance.dev/operator/pkg/base/audit/audittest"
	"nstance.dev/operator/pkg/server/groups"
)

// scaleAs sets the size of a group by a call with a request id.
func (s *server) scaleAs(id string, size int, generation int64) {
	s.t.Helper()
	change := sizeOf(size)
	change.Revision = &groups.Revision{UID: "u", Generation: generation}
	ctx := audit.WithRequest(s.t.Context(), audit.Request{ID: id, Writer: "client"})
	_, _, err := s.groups.Upsert(ctx, workersKey, change)
	require.NoError(s.t, err)
	s.reconcile(workersKey)
}

// audited starts a server whose terms log to log.
func audited(t *testing.T) (*server, *audittest.Log) {
	log := audittest.NewLog()
	s := start(t, newConfig())
	s.stop()
	s.log = log
	s.lead()
	return s, log
}

// TestTerminationsNameTheRequest: an instance that is drained for one request is terminated
// for the same request, even if another request follows.
func TestTerminationsNameTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := audited(t)
		s.scaleAs("grow", 3, 1)
		s.settle()
		ids := s.cloud.ids(workersKey)
		log.Expect(t)

		s.scaleAs("first", 2, 2)
		s.scaleAs("second", 1, 3)
		drains := log.Take()
		require.Len(t, drains, 2)
		for i, want := range []string{"first", "second"} {
			assert.Equal(t, audit.DrainInstance, drains[i].Action)
			assert.Equal(t, want, drains[i].RequestID())
			assert.Regexp(t, "^Audit: drain instance shard=a group=workers instance=.* from=running to=draining generation=. writer=client reason=scale-down deleteAt=.* requestID=ID$",
				drains[i].String())
		}
		first := drains[0].Values[audit.KeyInstance].(string)
		assert.Contains(t, ids, first)
		s.acknowledge(workersKey, first)
		s.settle()
		log.Expect(t, "Audit: terminate instance shard=a group=workers instance="+first+" from=draining to=terminated generation=2 writer=client reason=scale-down requestID=ID")
		s.pass(5 * time.Minute) // the deadline
		s.settle()
		terminated := log.Take()
		require.Len(t, terminated, 1)
		assert.Equal(t, audit.TerminateInstance, terminated[0].Action)
		assert.Equal(t, "second", terminated[0].RequestID())
	})
}

// TestARepeatedTerminationIsLoggedOnce: the provider is called again until the instance is
// being terminated.
func TestARepeatedTerminationIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := audited(t)
		s.scaleAs("grow", 1, 1)
		s.settle()
		id := s.cloud.ids(workersKey)[0]
		s.cloud.rejectNext("delete", 2)
		ctx := audit.WithRequest(t.Context(), audit.Request{ID: "request", Writer: "client"})
		require.NoError(t, s.instances.RequestDeletion(ctx, id))
		s.reconcile(workersKey)
		s.pass(time.Minute)
		s.settle()
		assert.NotContains(t, s.cloud.ids(workersKey), id)
		log.Expect(t, "Audit: terminate instance shard=a group=workers instance="+id+" from=terminating to=terminated writer=client reason=requested requestID=ID")
	})
}

// TestTerminationsAfterARestart: the request id is in memory, the generation is stored.
func TestTerminationsAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, log := audited(t)
		s.scaleAs("grow", 2, 1)
		s.settle()
		s.scaleAs("first", 1, 2)
		require.Len(t, log.Take(), 1)
		s.stop()
		s.lead()
		s.pass(5 * time.Minute)
		s.settle()
		lines := log.Take()
		require.Len(t, lines, 1)
		assert.Regexp(t, "^Audit: terminate instance shard=a group=workers instance=.* from=draining to=terminated generation=2 reason=scale-down$", lines[0].String())
	})
}
