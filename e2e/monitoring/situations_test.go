// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package monitoring

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// createScarcePool creates a pool of instances of the scarce type.
func createScarcePool(t *testing.T, name string, replicas int32, shards ...string) {
	t.Helper()
	pool := testcluster.NewNstanceMachinePool(name, shards...)
	pool.Spec.InstanceType = scarceType
	require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(name, replicas), pool))
}

// setQuota sets how many instances of each type the slow shard may have.
func setQuota(t *testing.T, quota map[string]int) {
	t.Helper()
	require.NoError(t, env.Installation.Reconfigure(slowShard, func(s *installation.Shard) { s.Quota = quota }))
	// The server reads its configuration only now and then.
	_, err := env.ShardClient(t, slowShard).RefreshConfig(context.WithoutCancel(t.Context()), &emptypb.Empty{})
	require.NoError(t, err)
}

// changeGroup changes the size of a group on the slow shard without the operator.
func changeGroup(ctx context.Context, group string, size int32) error {
	connection, err := env.Installation.Dial(slowShard)
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = nstancev1.NewOperatorServiceClient(connection).UpsertGroup(ctx, &nstancev1.UpsertGroupRequest{
		Key: group, Config: &nstancev1.GroupConfig{Template: "worker", Size: size},
	})
	return err
}
