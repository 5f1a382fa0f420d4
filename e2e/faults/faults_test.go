// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faults

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/faultproxy"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// faultyPool is the pool that must not lose instances.
const faultyPool = "precious"

// Information that is missing, late or wrong deletes nothing, and no fault needs a hand:
// the scale-up that it interrupts completes.
func TestFaults(t *testing.T) {
	o := runFaultyOperator(t, testcluster.ShortLease...)
	env.ExpectNoLosses(t, faultyPool, slices.Concat(
		o.apiServerFaults(), o.leaseFaults(), o.listFaults(), o.controllerFaults(), o.configurationFaults(), o.shardFaults(),
	), o.ensureRunning)
}

// The same with faults of one pool each, which happen at the same time.
func TestFaultsOfOnePool(t *testing.T) {
	o := runFaultyOperator(t)
	t.Run("writes fail", func(t *testing.T) {
		t.Parallel()
		env.ExpectNoLossesAtOnce(t, "unwritable", o.writeFaults(), o.Proxy.Heal)
	})
	t.Run("a zone has no stock", func(t *testing.T) {
		t.Parallel()
		testZoneWithoutStock(t)
	})
}

// untilMet waits until the operator has met a fault so many times.
func untilMet(t *testing.T, fault *faultproxy.Fault, times int) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "the operator meets the fault", func(context.Context) error { return met(times, fault) })
}

// met succeeds when the operator has met some faults so many times in all.
func met(times int, faults ...*faultproxy.Fault) error {
	count := 0
	for _, fault := range faults {
		count += fault.Met()
	}
	if count < times {
		return fmt.Errorf("%d of %d times", count, times)
	}
	return nil
}

// untilUnreachable waits until the pool reports why not all of its shards are
// reachable.
func untilUnreachable(t *testing.T, reason string) {
	t.Helper()
	untilPoolUnreachable(t, faultyPool, reason)
}

func untilPoolUnreachable(t *testing.T, name, reason string) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "pool "+name+" reports "+reason, func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, name)
		if err != nil {
			return err
		}
		return testcluster.HasCondition(pool.Status.Conditions, v1beta1.ConditionShardsReachable, metav1.ConditionFalse, reason)
	})
}
