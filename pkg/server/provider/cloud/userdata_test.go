// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package cloud_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"nstance.dev/operator/pkg/server/provider"
	"nstance.dev/operator/pkg/server/provider/cloud"
	"nstance.dev/operator/pkg/server/provider/cloud/cloudtest"
	"nstance.dev/operator/pkg/server/provider/providertest"
)

// remover is a cloud that can remove userdata.
type remover struct {
	cloud.API
	mu       sync.Mutex
	failures int
	removed  []string
}

// RemoveUserdata implements cloud.UserdataRemover.
func (r *remover) RemoveUserdata(_ context.Context, vm cloud.VM) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failures > 0 {
		r.failures--
		return errors.New("a test has set this error")
	}
	r.removed = append(r.removed, vm.ID)
	return nil
}

func (r *remover) all() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.removed
}

// TestUserdataIsRemovedOnce on request, however often it is requested, and again after a failure.
func TestUserdataIsRemovedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &remover{API: cloudtest.NewCloud().API(shard), failures: 2}
		w := &world{t: t, faults: cloudtest.NewFaults()}
		w.Harness = providertest.Start(t, func(callContext provider.CallContextFunc) provider.Provider {
			return cloud.New(r, cloud.Options{CallContext: callContext})
		})
		ids := w.runs(2)
		removal := w.Provider.(provider.UserdataRemover)
		removal.RemoveUserdata("unknown")
		for range 3 {
			removal.RemoveUserdata(ids[0])
			time.Sleep(time.Minute)
		}
		assert.Empty(t, r.all())
		time.Sleep(10 * time.Minute)
		assert.Equal(t, ids[:1], r.all())
		removal.RemoveUserdata(ids[0])
		time.Sleep(time.Hour)
		assert.Equal(t, ids[:1], r.all())
		// The request counts until the machine runs.
		id := w.MustCreate(spec("late"))
		removal.RemoveUserdata(id)
		time.Sleep(10 * time.Minute)
		assert.Equal(t, []string{ids[0], id}, r.all())
	})
}
