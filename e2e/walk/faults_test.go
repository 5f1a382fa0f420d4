// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package walk

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

// fault is what happens during a step, until heal is called.
type fault struct {
	name  string
	begin func(*testing.T, *rand.Rand) (heal func())
	// withoutWebhooks is set if the webhooks of Cluster API do not respond.
	withoutWebhooks bool
}

var faults = []fault{
	{name: "no fault", begin: func(*testing.T, *rand.Rand) func() { return func() {} }},
	{name: "the operator is killed", begin: func(t *testing.T, _ *rand.Rand) func() { return kill(t, env.OperatorProcess()) }},
	{name: "the operator hangs", begin: func(t *testing.T, _ *rand.Rand) func() { return testcluster.Freeze(t, env.OperatorProcess()) }},
	{name: "Cluster API is killed", begin: func(t *testing.T, _ *rand.Rand) func() { return kill(t, env.Component(controlplane.CAPI)) }, withoutWebhooks: true},
	{name: "the kubelets hang", begin: func(t *testing.T, _ *rand.Rand) func() {
		return testcluster.Freeze(t, env.Component(controlplane.KWOK))
	}},
	{name: "a server is killed", begin: func(t *testing.T, random *rand.Rand) func() { return kill(t, server(random)) }},
	{name: "a server is partitioned", begin: func(t *testing.T, random *rand.Rand) func() {
		partitioned := server(random)
		require.NoError(t, testcluster.FreezeUnlocked(partitioned, env.Installation.Bucket()))
		return func() { require.NoError(t, partitioned.Thaw()) }
	}},
	{name: "the API server restarts", begin: func(t *testing.T, _ *rand.Rand) func() {
		kill(t, env.Component(controlplane.APIServer))()
		return func() {}
	}},
	{name: "etcd is restored", begin: func(t *testing.T, _ *rand.Rand) func() {
		env.RestoreEtcd(t, env.BackUpEtcd(t))
		return func() {}
	}},
	{name: "a shard is out of stock", begin: func(t *testing.T, random *rand.Rand) func() {
		shard := shardIDs[random.IntN(len(shardIDs))]
		setQuota := func(quota map[string]int) {
			require.NoError(t, env.Installation.Reconfigure(shard, func(s *installation.Shard) { s.Quota = quota }))
		}
		setQuota(map[string]int{instanceTypes[0]: 1, instanceTypes[1]: 1})
		return func() { setQuota(nil) }
	}},
}

func server(random *rand.Rand) *controlplane.Component {
	return env.ShardServer(shardIDs[random.IntN(len(shardIDs))])
}

// kill kills a component, which heal starts again.
func kill(t *testing.T, component *controlplane.Component) (heal func()) {
	t.Helper()
	require.NoError(t, component.Kill(t.Context()))
	return func() {
		t.Helper()
		if _, running := component.PID(); !running {
			testcluster.Start(t, component)
		}
	}
}

// startOperator starts the operator if it has exited, as its Deployment does.
func startOperator(ctx context.Context) error {
	operator := env.OperatorProcess()
	if _, running := operator.PID(); running {
		return nil
	}
	return operator.Start(context.WithoutCancel(ctx))
}
