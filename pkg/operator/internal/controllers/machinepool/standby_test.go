// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package machinepool

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/pkg/operator/internal/controllers/controllertest"
)

// The handlers of a standby are called for as long as another process leads.
func TestStandbyCollectsNoKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, withSizes(map[string]int32{"a": 0, "b": 0}), newPool("a", "b"))
		h.scale(4)
		for i := range 100 {
			deleted := newPool("a")
			deleted.Name = fmt.Sprintf("former-%d", i)
			h.controller.poolChanged(deleted, nil)
		}
		// A sync of a pool that does not exist forgets the MachinePool that was created for it.
		former := controllertest.Key("former-0")
		h.controller.created.Store(former, types.UID("former"))
		assert.Zero(t, h.controller.queue.Len(), "keys of a standby")

		ctx, cancel := context.WithTimeout(h.Ctx, time.Minute)
		defer cancel()
		h.controller.Run(ctx)
		_, kept := h.controller.created.Load(former)
		assert.True(t, kept, "a dropped key was synced")
		assert.NotEmpty(t, h.Writes(), "a new leader syncs every pool")
	})
}
