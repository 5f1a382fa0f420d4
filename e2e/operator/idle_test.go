// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"nstance.dev/operator/e2e/testcluster"
)

// When nothing changes the operator writes nothing, through several resyncs.
func TestQuietWhenIdle(t *testing.T) {
	const pools, rounds = 100, 5
	names := make([]string, pools)
	var group errgroup.Group
	group.SetLimit(8)
	for i := range names {
		names[i] = fmt.Sprintf("quiet-%d", i)
		group.Go(func() error { return env.CreatePoolOnAllShards(t.Context(), names[i], 1) })
	}
	require.NoError(t, group.Wait())
	t.Cleanup(func() { env.DeletePools(t, names...) })
	for _, name := range names {
		testcluster.Eventually(t, 5*time.Minute, name+" runs", func(ctx context.Context) error { return env.Running(ctx, name, 1) })
	}
	// The syncs that the operator's own writes trigger come first.
	env.UntilQueued(t, 10*time.Minute, "shardgroup", pools*3)

	from, calls, begin := env.AuditEnd(t), upserts(t), time.Now()
	env.UntilQueued(t, 10*time.Minute, "shardgroup", pools*3*rounds)
	t.Logf("%d pools, %d resyncs, %s", pools, rounds, time.Since(begin).Round(time.Second))
	if writes := env.OperatorWrites(t, from); len(writes) > 0 {
		t.Errorf("%d writes while nothing changed:%s", len(writes), testcluster.Describe(writes))
	}
	if more := upserts(t) - calls; more > 0 {
		t.Errorf("%v UpsertGroup calls while nothing changed", more)
	}
}
