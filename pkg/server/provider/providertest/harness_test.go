// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package providertest

import (
	"context"
	"testing"
	"testing/synctest"

	"nstance.dev/operator/pkg/server/instance"
	"nstance.dev/operator/pkg/server/provider"
)

// failing reports failures without end.
type failing struct {
	provider.Provider
	synced chan struct{}
}

func (f failing) Run(ctx context.Context, _ func(instance.GroupKey), failed provider.FailureFunc) error {
	close(f.synced)
	for ctx.Err() == nil {
		failed(instance.GroupKey{}, "knd1", context.Canceled)
	}
	return nil
}

func (f failing) Synced() <-chan struct{} { return f.synced }

// TestStopWithUnreadReports: a walk that reads no reports must not hang when it restarts its
// provider.
func TestStopWithUnreadReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := Start(t, func(provider.CallContextFunc) provider.Provider { return failing{synced: make(chan struct{})} })
		synctest.Wait()
		h.Stop()
		h.Discard()
		if n := len(h.Failures); n != 0 {
			t.Errorf("%d failures are left", n)
		}
	})
}
