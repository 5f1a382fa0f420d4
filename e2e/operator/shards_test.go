// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	nstancev1 "nstance.dev/operator/proto/nstance/v1"
)

// upsertDirectly changes a group on a shard's server without the operator.
func upsertDirectly(t testing.TB, shard, group string, size int32) {
	t.Helper()
	_, err := env.ShardClient(t, shard).UpsertGroup(t.Context(), &nstancev1.UpsertGroupRequest{
		Key: group, Config: &nstancev1.GroupConfig{Template: "worker", Size: size},
	})
	require.NoError(t, err)
}

// sizeOnShard returns the size that a shard's server itself reports.
func sizeOnShard(ctx context.Context, shard, group string) (int32, error) {
	status, err := env.Group(ctx, shard, group)
	if err == nil && status == nil {
		err = fmt.Errorf("no group %s", group)
	}
	return status.GetSize(), err
}

// Changes of a group on a server are reverted.
func TestDriftIsCorrected(t *testing.T) {
	t.Parallel()
	const name, shard = "drift", "us-west-2b"
	env.CreatePoolForTest(t, name, 3)
	env.UntilRunning(t, name, 3)

	for _, size := range []int32{5, 0} {
		upsertDirectly(t, shard, name, size)
		testcluster.Eventually(t, time.Minute, fmt.Sprintf("size %d is reverted", size), func(ctx context.Context) error {
			got, err := sizeOnShard(ctx, shard, name)
			if err == nil && got != 1 {
				err = fmt.Errorf("size is %d, want 1", got)
			}
			return err
		})
	}
	env.UntilRunning(t, name, 3)
}

// interruptedScaling is the scaling of a pool of six instances. A shard that is down does not
// block the others, loses nothing, and gets the latest size once when it is up again.
func interruptedScaling(t *testing.T, name, down string) interrupted {
	t.Helper()
	before, err := env.ShardGroup(t.Context(), name, down)
	require.NoError(t, err)
	calls := 0
	return interrupted{
		name: "scaling of " + name,
		change: func(t *testing.T) {
			for _, replicas := range []int32{9, 15, 12} {
				env.Scale(t, name, replicas)
				for _, up := range shardIDs {
					if up == down {
						continue
					}
					testcluster.Eventually(t, time.Minute, fmt.Sprintf("%s gets its share of %d", up, replicas), func(ctx context.Context) error {
						size, err := sizeOnShard(ctx, up, name)
						if err == nil && size != replicas/3 {
							err = fmt.Errorf("size is %d, want %d", size, replicas/3)
						}
						return err
					})
				}
			}
		},
		waits: func(t *testing.T) {
			testcluster.Eventually(t, 45*time.Second, "the shard group reports that its shard is unreachable", func(ctx context.Context) error {
				group, err := env.ShardGroup(ctx, name, down)
				if err != nil {
					return err
				}
				if !meta.IsStatusConditionFalse(group.Status.Conditions, v1beta1.ConditionShardReachable) {
					return fmt.Errorf("conditions %+v", group.Status.Conditions)
				}
				if !slices.Equal(group.Status.ProviderIDs, before.Status.ProviderIDs) {
					t.Errorf("provider ids became %v, want %v", group.Status.ProviderIDs, before.Status.ProviderIDs)
				}
				return nil
			})
			testcluster.Eventually(t, time.Minute, "the pool keeps the ids of the unreachable shard", func(ctx context.Context) error {
				pool, err := env.NstanceMachinePool(ctx, name)
				if err != nil {
					return err
				}
				for _, id := range before.Status.ProviderIDs {
					if !slices.Contains(pool.Spec.ProviderIDList, id) {
						t.Errorf("%s was removed from the pool's list", id)
					}
				}
				if len(pool.Spec.ProviderIDList) != 10 || ptr.Deref(pool.Status.Shards.Reachable, 0) != 2 {
					return fmt.Errorf("%d ids and %d shards reachable, want 10 and 2", len(pool.Spec.ProviderIDList), ptr.Deref(pool.Status.Shards.Reachable, 0))
				}
				if !meta.IsStatusConditionFalse(pool.Status.Conditions, v1beta1.ConditionShardsReachable) {
					return errors.New("ShardsReachable is not False")
				}
				return nil
			})
			calls = callsFor(t, name, down)
		},
		completes: func(t *testing.T) {
			env.UntilRunning(t, name, 12)
			// The shard gets a single call, without the sizes in between.
			if got := callsFor(t, name, down) - calls; got != 1 {
				t.Errorf("the shard received UpsertGroup %v times since it is up again, want once", got)
			}
		},
	}
}

// A problem on a shard is reported in the conditions of the shard group and its pool,
// and by one event on each.
func TestShardProblemsAreReported(t *testing.T) {
	t.Parallel()
	const shard, scarce = "us-west-2a", "m7i.xlarge"
	t.Run("quota", func(t *testing.T) {
		t.Parallel()
		const name = "quota"
		env.SetQuota(t, shard, map[string]int{scarce: 1})
		end := sync.OnceFunc(func() { env.SetQuota(t, shard, nil) })
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

// createWith creates a pool with a MachinePool, and deletes both at the end of the test.
func createWith(t *testing.T, pool *v1beta1.NstanceMachinePool, replicas int32) {
	t.Helper()
	require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(pool.Name, replicas), pool))
	t.Cleanup(func() { env.DeletePools(t, pool.Name) })
}
