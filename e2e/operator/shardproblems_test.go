// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A problem on a shard is reported in the conditions of the shard group and its pool,
// and by one event on each.
func TestShardProblemsAreReported(t *testing.T) {
	t.Parallel()
	const shard, scarce = "us-west-2a", "m7i.xlarge"
	t.Run("quota", func(t *testing.T) {
		t.Parallel()
		const name = "quota"
		setQuota(t, shard, map[string]int{scarce: 1})
		end := sync.OnceFunc(func() { setQuota(t, shard, nil) })
		t.Cleanup(end)
		pool := testcluster.NewNstanceMachinePool(name, shardIDs...)
		pool.Spec.InstanceType = scarce
		createWith(t, pool, 6)
		untilProblemReported(t, name, shard, v1beta1.ReasonProviderError, "quota")
		end()
		env.UntilRunning(t, name, 6)
		expectOneEvent(t, name, shard, v1beta1.ReasonProviderError)
	})
	t.Run("rejected", func(t *testing.T) {
		t.Parallel()
		const name = "rejected"
		pool := testcluster.NewNstanceMachinePool(name, shardIDs...)
		pool.Spec.Template = "no-such-template"
		createWith(t, pool, 6)
		untilProblemReported(t, name, shard, v1beta1.ReasonConfigRejected, pool.Spec.Template)
		expectOneEvent(t, name, shard, v1beta1.ReasonConfigRejected)
	})
}

// interruptedCreation is the creation of a pool with a shard that does not respond, which is
// reported like any other problem.
func interruptedCreation(name, shard string) interrupted {
	return interrupted{
		name:   "creation of " + name,
		change: func(t *testing.T) { require.NoError(t, env.CreatePoolOnAllShards(t.Context(), name, 6)) },
		waits:  func(t *testing.T) { untilProblemReported(t, name, shard, v1beta1.ReasonShardUnreachable, "") },
		completes: func(t *testing.T) {
			env.UntilRunning(t, name, 6)
			expectOneEvent(t, name, shard, v1beta1.ReasonShardUnreachable)
		},
	}
}

// untilProblemReported waits until a shard group and its pool report a problem in their
// conditions and by an event.
func untilProblemReported(t *testing.T, name, shard, reason, message string) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "the shard group and the pool report the reason", func(ctx context.Context) error {
		group, err := env.ShardGroup(ctx, name, shard)
		if err != nil {
			return err
		}
		pool, err := env.NstanceMachinePool(ctx, name)
		if err != nil {
			return err
		}
		for what, conditions := range map[string][]metav1.Condition{"shard group": group.Status.Conditions, "pool": pool.Status.Conditions} {
			ready := meta.FindStatusCondition(conditions, v1beta1.ConditionReady)
			if ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != reason || !strings.Contains(ready.Message, message) {
				return fmt.Errorf("Ready of the %s is %+v", what, ready)
			}
		}
		return nil
	})
	testcluster.Eventually(t, time.Minute, "each has an event", func(ctx context.Context) error {
		for _, object := range []string{name, v1beta1.ShardGroupName(name, shard)} {
			if count, err := env.CountEvents(ctx, object, reason); err != nil || count == 0 {
				return fmt.Errorf("%d events on %s: %w", count, object, err)
			}
		}
		return nil
	})
}

// expectOneEvent fails the test unless a pool and its shard group have one event each for a
// problem.
func expectOneEvent(t *testing.T, name, shard, reason string) {
	t.Helper()
	for _, object := range []string{name, v1beta1.ShardGroupName(name, shard)} {
		if count, err := env.CountEvents(t.Context(), object, reason); err != nil || count != 1 {
			t.Errorf("%d events on %s, error %v, want 1", count, object, err)
		}
	}
}

func setQuota(t *testing.T, shard string, quota map[string]int) {
	t.Helper()
	reconfigure(t, shard, func(s *installation.Shard) { s.Quota = quota })
}

// createWith creates a pool with a MachinePool, and deletes both at the end of the test.
func createWith(t *testing.T, pool *v1beta1.NstanceMachinePool, replicas int32) {
	t.Helper()
	require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(pool.Name, replicas), pool))
	t.Cleanup(func() { env.DeletePools(t, pool.Name) })
}
