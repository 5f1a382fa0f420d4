// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package walk

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

// durationVariable is the environment variable with the least duration of a walk.
const durationVariable = "NSTANCE_WALK_DURATION"

// leastSteps is how many steps a walk has at least.
const leastSteps = 5

// TestWalk changes pools while something fails, again and again. After each step everything
// agrees with the model within a limit, and no instance was replaced without a reason.
func TestWalk(t *testing.T) {
	duration := tier.Pick(0, 3*time.Minute)
	if text := os.Getenv(durationVariable); text != "" {
		var err error
		duration, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	random := rand.New(rand.NewPCG(tier.Seeds(t, 1)[0], 0))

	m := newModel(t, "walk-a", "walk-b", "walk-c")
	steps := 0
	// Each fault happens once before any happens again.
	var order []fault
	for begin := time.Now(); steps < leastSteps || time.Since(begin) < duration; steps++ {
		if len(order) == 0 {
			order = shuffled(random)
		}
		next := order[0]
		order = order[1:]
		name := fmt.Sprintf("step %d: %s", steps, next.name)
		if !t.Run(name, func(t *testing.T) {
			from := m.observe(t)
			heal := next.begin(t, random)
			for range 1 + random.IntN(3) {
				t.Log(m.change(t, random, next.withoutWebhooks))
			}
			heal()
			m.resume(t)
			m.expectAgreement(t, from)
		}) {
			break
		}
	}
	t.Logf("%d steps, %d changes", steps, m.changes)
}

func shuffled(random *rand.Rand) []fault {
	order := append([]fault{}, faults...)
	random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	return order
}

// fault is an outage during a step, until heal is called.
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
		setQuota(map[string]int{instanceTypes[0]: 1, instanceTypes[1]: 1, instanceTypes[1] + "/" + string(v1beta1.MarketSpot): 0})
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
