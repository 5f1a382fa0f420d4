// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// When nothing happens the operator does nothing, through several resyncs.
func TestQuietWhenIdle(t *testing.T) {
	const pools, rounds = 100, 5
	names := make([]string, pools)
	var group errgroup.Group
	group.SetLimit(8)
	for i := range names {
		names[i] = fmt.Sprintf("quiet-%d", i)
		group.Go(func() error { return tryCreatePool(t.Context(), names[i], 1) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removePools(t, names...) })
	for _, name := range names {
		eventually(t, 5*time.Minute, name+" runs", func(ctx context.Context) error { return running(ctx, name, 1) })
	}
	// What follows a write of our own is still part of it.
	synced := func(ctx context.Context) (float64, error) {
		return metric(ctx, env.operator.URL(), "workqueue_adds_total", map[string]string{"name": "shardgroup"})
	}
	waitForSyncs := func(what string, atLeast float64) {
		t.Helper()
		start, err := synced(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, 10*time.Minute, what, func(ctx context.Context) error {
			now, err := synced(ctx)
			if err == nil && now-start < atLeast {
				err = fmt.Errorf("%v of %v syncs", now-start, atLeast)
			}
			return err
		})
	}
	waitForSyncs("a resync has passed", pools*3)

	from, calls, begin := auditEnd(t), upserts(t), time.Now()
	waitForSyncs(fmt.Sprintf("%d resyncs have passed", rounds), pools*3*rounds)
	t.Logf("%d pools, %d resyncs, %s", pools, rounds, time.Since(begin).Round(time.Second))
	if writes := operatorWrites(t, from, nil); len(writes) > 0 {
		t.Errorf("%d writes while nothing happened:%s", len(writes), describe(writes))
	}
	if more := upserts(t) - calls; more > 0 {
		t.Errorf("%v UpsertGroup calls while nothing happened", more)
	}
}
