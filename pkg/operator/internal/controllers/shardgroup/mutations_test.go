// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

// newSettled returns a harness with a shard group that its shard runs.
func newSettled(t *testing.T) *harness {
	t.Helper()
	h := newHarness(t, newObject())
	h.setGroup(reported())
	for range 10 {
		did, _, err := h.Sync()
		require.NoError(t, err)
		if len(did) == 0 {
			return h
		}
	}
	t.Fatal("it is never settled")
	return nil
}

func TestHandlerSeesWhatASyncDependsOn(t *testing.T) {
	t.Parallel()
	before := newSettled(t).object()
	controllertest.ExpectSeen(t, before, func(changed *v1beta1.NstanceShardGroup) (enqueued, did []string, err error) {
		h := newSettled(t)
		h.Put(h.Informers.Nstance.NstanceShardGroups().Informer(), changed)
		enqueued = controllertest.Enqueued(t, &h.controller.queue, func() { h.controller.shardGroupChanged(before, changed) })
		did, _, err = h.SyncStale()
		return enqueued, did, err
	}, "Status") // which is the controller's own: the resync reverts what others write
}
