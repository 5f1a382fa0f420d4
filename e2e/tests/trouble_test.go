// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// What goes wrong on a shard is told where users look: in the conditions of the
// shard group and its pool, and by one event on each.
func TestTroubleIsVisible(t *testing.T) {
	const shard = "us-west-2a"
	const scarce = "m7i.xlarge"
	for name, trouble := range map[string]struct {
		reason, message string
		change          func(*v1beta1.NstanceMachinePool)
		begin, end      func(*testing.T)
	}{
		"starved": {
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
				if err := shardComponent(shard).Kill(t.Context()); err != nil {
					t.Fatal(err)
				}
			},
			end: func(t *testing.T) { mustStart(t, shardComponent(shard)) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			if trouble.begin != nil {
				trouble.begin(t)
			}
			ended := trouble.end == nil
			end := func() {
				if !ended {
					ended = true
					trouble.end(t)
				}
			}
			t.Cleanup(end)
			pool := newPool(name, shardIDs...)
			if trouble.change != nil {
				trouble.change(pool)
			}
			createWith(t, pool, 6)
			eventually(t, 2*time.Minute, "the shard group and the pool tell the reason", func(ctx context.Context) error {
				group, err := getShardGroup(ctx, name, shard)
				if err != nil {
					return err
				}
				pool, err := getPool(ctx, name)
				if err != nil {
					return err
				}
				for what, conditions := range map[string][]metav1.Condition{"shard group": group.Status.Conditions, "pool": pool.Status.Conditions} {
					ready := meta.FindStatusCondition(conditions, v1beta1.ConditionReady)
					if ready == nil || ready.Status != metav1.ConditionFalse || ready.Reason != trouble.reason || !strings.Contains(ready.Message, trouble.message) {
						return fmt.Errorf("Ready of the %s is %+v", what, ready)
					}
				}
				return nil
			})
			objects := []string{name, v1beta1.ShardGroupName(name, shard)}
			eventually(t, time.Minute, "each has an event", func(ctx context.Context) error {
				for _, object := range objects {
					if count, err := eventsOn(ctx, object, trouble.reason); err != nil || count == 0 {
						return fmt.Errorf("%d events on %s: %w", count, object, err)
					}
				}
				return nil
			})
			end()
			if trouble.end != nil {
				eventually(t, 2*time.Minute, "the pool runs when it is over", func(ctx context.Context) error { return running(ctx, name, 6) })
			}
			for _, object := range objects {
				if count, err := eventsOn(t.Context(), object, trouble.reason); err != nil || count != 1 {
					t.Errorf("%d events on %s, error %v, want 1", count, object, err)
				}
			}
		})
	}
}

func setQuota(t *testing.T, shard string, quota map[string]int) {
	t.Helper()
	if err := env.n.Reconfigure(shard, func(s *nstance.Shard) { s.Quota = quota }); err != nil {
		t.Fatal(err)
	}
	// Not when the server looks next.
	if _, err := shardClient(t, shard).RefreshConfig(t.Context(), &emptypb.Empty{}); err != nil {
		t.Fatal(err)
	}
}

// createWith makes a pool with a MachinePool, and removes both when the test
// ends.
func createWith(t *testing.T, pool *v1beta1.NstanceMachinePool, replicas int32) {
	t.Helper()
	_, err := env.capi.MachinePools(nstance.Namespace).Create(t.Context(), newMachinePool(pool.Name, replicas), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removePools(t, pool.Name) })
	if _, err = env.nstance.InfrastructureV1beta1().NstanceMachinePools(nstance.Namespace).Create(t.Context(), pool, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
