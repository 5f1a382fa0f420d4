// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package importer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
	"nstance.dev/operator/pkg/operator/shard/shardtest"
)

// The handlers of a standby are called for as long as another process leads.
func TestStandbyCollectsNoKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, map[string]*shardtest.Shard{"a": shardtest.NewShard()})
		h.Fake.SetGroup("a", dynamic("standard"))
		// A sync of a group with an invalid name stores the name.
		const former = "Former_Group"
		h.Fake.NotifyGroup("a", former)
		h.controller.machinePoolChanged(controllertest.Deleting(controllertest.NewMachinePool("former", "former")), nil)
		assert.Zero(t, h.controller.queue.Len(), "keys of a standby")

		ctx, cancel := context.WithTimeout(h.Ctx, time.Minute)
		defer cancel()
		h.controller.Run(ctx)
		_, synced := h.controller.invalidNames.Load(former)
		assert.False(t, synced, "a dropped key was synced")
		assert.NotNil(t, h.pool("main"), "a new leader syncs every group")
	})
}
