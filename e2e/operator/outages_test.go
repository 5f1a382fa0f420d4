// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
)

// outage is a reason why a shard does not answer, until end is called or the test is
// over.
type outage struct {
	name  string
	begin func(*testing.T, *controlplane.Component) (end func())
}

var (
	allUp = outage{name: "all shards up"}
	down  = outage{"a shard down", func(t *testing.T, shard *controlplane.Component) func() {
		t.Helper()
		require.NoError(t, shard.Kill(t.Context()))
		end := sync.OnceFunc(func() { testcluster.Start(t, shard) })
		t.Cleanup(end)
		return end
	}}
	hanging = outage{"a shard hanging", func(t *testing.T, shard *controlplane.Component) func() {
		t.Helper()
		return testcluster.Freeze(t, shard)
	}}
)
