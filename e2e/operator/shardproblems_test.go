// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A problem on a shard is reported in the conditions of the shard group and its pool,
// and by one event on each.
func TestShardProblemsAreReported(t *testing.T) {
	const shard = "us-west-2a"
	const scarce = "m7i.xlarge"
	for name, problem := range map[string]struct {
		reason, message string
		change          func(*v1beta1.NstanceMachinePool)
		begin, end      func(*testing.T)
	}{
		"quota": {
			reason: v1beta1.ReasonProviderError, message: "quota",
			change: func(pool *v1beta1.NstanceMachinePool) { pool.Spec.InstanceType = scarce },
			begin:  func(t *testing.T) { setQuota(t, shard, map[string]int{scarce: 1}) },
			end:    func(t *testing.T) { setQuota(t, shard, nil) },
		},
		"rejected": {
			reason: v1beta1.ReasonConfigRejected, message: "no-such-template",
			change: func(pool *v1beta1.NstanceMachinePool) { pool.Spec.Template = "no-such-template" },
		},
		"unreachable": {
			reason: v1beta1.ReasonShardUnreachable,
			begin: func(t *testing.T) {
				require.NoError(t, env.ShardServer(shard).Kill(t.Context()))
			},
			end: func(t *testing.T) { testcluster.Start(t, env.ShardServer(shard)) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			if problem.begin != nil {
				problem.begin(t)
			}
			solved := problem.end == nil
			end := func() {
				if !solved {
					solved = true
					problem.end(t)
				}
			}
			t.Cleanup(end)
			pool := testcluster.NewNstanceMachinePool(name, shardIDs...)
			if problem.change != nil {
				problem.change(pool)
			}
			createWith(t, pool, 6)
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
					if ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != problem.reason || !strings.Contains(ready.Message, problem.message) {
						return fmt.Errorf("Ready of the %s is %+v", what, ready)
					}
				}
				return nil
			})
			objects := []string{name, v1beta1.ShardGroupName(name, shard)}
			testcluster.Eventually(t, time.Minute, "each has an event", func(ctx context.Context) error {
				for _, object := range objects {
					if count, err := env.CountEvents(ctx, object, problem.reason); err != nil || count == 0 {
						return fmt.Errorf("%d events on %s: %w", count, object, err)
					}
				}
				return nil
			})
			end()
			if problem.end != nil {
				env.UntilRunning(t, name, 6)
			}
			for _, object := range objects {
				if count, err := env.CountEvents(t.Context(), object, problem.reason); err != nil || count != 1 {
					t.Errorf("%d events on %s, error %v, want 1", count, object, err)
				}
			}
		})
	}
}

func setQuota(t *testing.T, shard string, quota map[string]int) {
	t.Helper()
	require.NoError(t, env.Installation.Reconfigure(shard, func(s *installation.Shard) { s.Quota = quota }))
	// The server reads its configuration only now and then.
	_, err := env.ShardClient(t, shard).RefreshConfig(t.Context(), &emptypb.Empty{})
	require.NoError(t, err)
}

// createWith creates a pool with a MachinePool, and deletes both at the end of the test.
func createWith(t *testing.T, pool *v1beta1.NstanceMachinePool, replicas int32) {
	t.Helper()
	require.NoError(t, env.CreatePool(t.Context(), testcluster.NewMachinePool(pool.Name, replicas), pool))
	t.Cleanup(func() { env.DeletePools(t, pool.Name) })
}
