// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardgroup

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

// The handlers of a standby are called for as long as another process leads.
func TestStandbyCollectsNoKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, newObject())
		for i := range 100 {
			deleted := newObject()
			deleted.Name = fmt.Sprintf("former-%d--a", i)
			h.controller.shardGroupChanged(deleted, nil)
			h.Fake.NotifyGroup("a", fmt.Sprintf("former-%d", i))
		}
		// A sync of an object that does not exist drops its state.
		former := controllertest.Key("former-0--a")
		h.controller.setRejection(former, &rejection{})
		assert.Zero(t, h.controller.queue.Len(), "keys of a standby")

		ctx, cancel := context.WithTimeout(h.Ctx, time.Minute)
		defer cancel()
		h.controller.Run(ctx)
		assert.NotNil(t, h.controller.rejection(former), "a dropped key was synced")
		assert.Contains(t, h.Fake.Calls(), "upsert workers on a with size 3", "a new leader syncs every shard group")
	})
}
