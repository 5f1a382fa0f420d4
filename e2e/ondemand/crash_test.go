// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/tier"
)

// An operator that is killed repeatedly while it creates machines creates each of
// them once.
func TestOperatorKilledWhileCreatingMachines(t *testing.T) {
	const namespace, podsPerKill = "killed", 2
	kills := tier.Pick(6, 20)
	// maxWrites is after how many writes at the latest a leader is killed: two
	// machines take at least as many.
	const maxWrites = 10
	watchOperator(t)
	newNamespace(t, namespace)
	before := countCreations(t)
	random := rand.New(rand.NewPCG(tier.Seeds(t, 1)[0], 0))
	for i := range kills {
		for j := range podsPerKill {
			createPod(t, newPod(namespace, fmt.Sprintf("builder-%d", i*podsPerKill+j)))
		}
		from, after := env.AuditEnd(t), 1+random.IntN(maxWrites)
		testcluster.EventuallyEvery(t, 5*time.Millisecond, time.Minute, fmt.Sprintf("leader %d writes", i), func(context.Context) error {
			if written := len(env.OperatorWrites(t, from)); written < after {
				return fmt.Errorf("%d writes, want %d", written, after)
			}
			return nil
		})
		require.NoError(t, env.OperatorProcess().Kill(t.Context()))
		env.ReleaseLease(t)
		testcluster.Start(t, env.OperatorProcess())
	}
	testcluster.EventuallyEvery(t, time.Second, 3*time.Minute, "all Pods run on their machines", func(ctx context.Context) error {
		return allRun(ctx, namespace, kills*podsPerKill)
	})
	t.Logf("instances on the shards: %v", before.expectOneEach(t, namespace))
}
