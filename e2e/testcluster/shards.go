// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package testcluster

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// ShardServer returns the component that runs a shard's server.
func (c *Cluster) ShardServer(id string) *controlplane.Component {
	return c.Component(installation.Shard{ID: id}.Component())
}

// ShardClient returns a client of a shard's server, without the operator.
func (c *Cluster) ShardClient(t testing.TB, shard string) nstancev1.OperatorServiceClient {
	t.Helper()
	connection, err := c.Installation.Dial(shard)
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	return nstancev1.NewOperatorServiceClient(connection)
}

// Group returns a group as the server of a shard reports it, nil if the server does not report it.
func (c *Cluster) Group(ctx context.Context, shard, name string) (*nstancev1.GroupStatus, error) {
	connection, err := c.Installation.Dial(shard)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	list, err := nstancev1.NewOperatorServiceClient(connection).ListGroups(ctx, &emptypb.Empty{})
	for _, group := range list.GetGroups() {
		if group.GetKey() == name {
			return group, nil
		}
	}
	return nil, err
}

// Calls returns the calls that the server of a shard has received.
func (c *Cluster) Calls(t testing.TB, shard string) []installation.Call {
	t.Helper()
	calls, err := c.Installation.Calls(shard)
	require.NoError(t, err)
	return calls
}

// Creations returns the on-demand instances that the server of a shard has created.
func (c *Cluster) Creations(t testing.TB, shard string) []installation.Creation {
	t.Helper()
	creations, err := c.Installation.Creations(shard)
	require.NoError(t, err)
	return creations
}

// CountCreations returns how many on-demand instances each shard has created.
func (c *Cluster) CountCreations(t testing.TB) map[string]int {
	t.Helper()
	counts := map[string]int{}
	for _, shard := range c.ShardIDs {
		counts[shard] = len(c.Creations(t, shard))
	}
	return counts
}

// Reconfigure changes the configuration of a server, and has the server read it at once
// instead of at its next poll.
func (c *Cluster) Reconfigure(t testing.TB, shard string, change func(*installation.Shard)) {
	t.Helper()
	require.NoError(t, c.Installation.Reconfigure(shard, change))
	_, err := c.ShardClient(t, shard).RefreshConfig(context.WithoutCancel(t.Context()), &emptypb.Empty{})
	require.NoError(t, err)
}

// SetQuota sets how many instances of each type, or of each TYPE/MARKET, a shard may have. nil removes the limits.
func (c *Cluster) SetQuota(t testing.TB, shard string, quota map[string]int) {
	t.Helper()
	c.Reconfigure(t, shard, func(s *installation.Shard) { s.Quota = quota })
}
