// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"

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
				if len(pool.Spec.ProviderIDList) != 10 || pool.Status.Shards.Reachable != 2 {
					return fmt.Errorf("%d ids and %d shards reachable, want 10 and 2", len(pool.Spec.ProviderIDList), pool.Status.Shards.Reachable)
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
			// One call, and not the sizes in between.
			if got := callsFor(t, name, down) - calls; got != 1 {
				t.Errorf("the shard received UpsertGroup %v times since it is up again, want once", got)
			}
		},
	}
}
