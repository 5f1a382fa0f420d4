// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package shardfaults

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// pool is the pool that must not lose instances.
const pool = "steady"

// What a shard does not report, reports late or cannot store deletes nothing, and no fault
// needs a hand: the scale-up that it interrupts completes.
func TestShardFaults(t *testing.T) {
	env.ExpectNoLosses(t, pool, slices.Concat(
		serverFaults(), networkFaults(), storageFaults(), fullFaults(), configurationFaults(),
	), nil)
}

// untilShardsReachable waits until a pool reports whether all of its shards are reachable.
func untilShardsReachable(t *testing.T, name string, status metav1.ConditionStatus, reason string) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, fmt.Sprintf("the pool has ShardsReachable=%s, %s", status, reason), func(ctx context.Context) error {
		object, err := env.NstanceMachinePool(ctx, name)
		if err != nil {
			return err
		}
		return testcluster.HasCondition(object.Status.Conditions, v1beta1.ConditionShardsReachable, status, reason)
	})
}

func untilUnreachable(t *testing.T) {
	t.Helper()
	untilShardsReachable(t, pool, metav1.ConditionFalse, v1beta1.ReasonShardUnreachable)
}
