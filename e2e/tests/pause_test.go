// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package tests

import (
	"context"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// Who pauses a pool sees what is, and nothing changes, on no shard and in no
// spec, until it goes on.
func TestPause(t *testing.T) {
	const name = "paused"
	const on = `{"metadata":{"annotations":{"cluster.x-k8s.io/paused":""}}}`
	const off = `{"metadata":{"annotations":{"cluster.x-k8s.io/paused":null}}}`
	for what, pause := range map[string]struct {
		resource schema.GroupVersionResource
		name     string
		on, off  string
	}{
		"pool":        {v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools"), name, on, off},
		"MachinePool": {clusterv1.GroupVersion.WithResource("machinepools"), name, on, off},
		"Cluster":     {clusterv1.GroupVersion.WithResource("clusters"), clusterName, `{"spec":{"paused":true}}`, `{"spec":{"paused":null}}`},
	} {
		t.Run(what, func(t *testing.T) {
			createPool(t, name, 3)
			eventually(t, 2*time.Minute, "the pool runs", func(ctx context.Context) error { return running(ctx, name, 3) })
			patch := func(patch string) {
				t.Helper()
				_, err := env.dynamic.Resource(pause.resource).Namespace(nstance.Namespace).
					Patch(context.WithoutCancel(t.Context()), pause.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
				if err != nil {
					t.Fatal(err)
				}
			}
			patch(pause.on)
			goesOn := false
			t.Cleanup(func() {
				if !goesOn {
					patch(pause.off)
				}
			})
			eventually(t, time.Minute, "the pool says that it is paused", func(ctx context.Context) error {
				return conditionIs(ctx, name, v1beta1.ConditionPaused, metav1.ConditionTrue)
			})

			scale(t, name, 9)
			upsertBehind(t, "us-west-2a", name, 2)
			from, calls := auditEnd(t), callsFor(t, name)
			eventually(t, time.Minute, "the status follows the shards", func(ctx context.Context) error {
				pool, err := getPool(ctx, name)
				if err != nil {
					return err
				}
				if pool.Status.Replicas == nil || *pool.Status.Replicas != 4 {
					return fmt.Errorf("replicas are %v", pool.Status.Replicas)
				}
				return nil
			})
			if now := callsFor(t, name); now != calls {
				t.Errorf("the shards were called %d times while the pool was paused", now-calls)
			}
			specs := operatorWrites(t, from, func(w controlplane.Write) bool {
				return w.Subresource == "" && w.Resource != "events"
			})
			if len(specs) > 0 {
				t.Errorf("wrote to specs while the pool was paused:%s", describe(specs))
			}

			patch(pause.off)
			goesOn = true
			eventually(t, 2*time.Minute, "the pool goes on", func(ctx context.Context) error { return running(ctx, name, 9) })
			if err := conditionIs(t.Context(), name, v1beta1.ConditionPaused, metav1.ConditionFalse); err != nil {
				t.Error(err)
			}
		})
	}
}

func conditionIs(ctx context.Context, pool, kind string, want metav1.ConditionStatus) error {
	object, err := getPool(ctx, pool)
	if err != nil {
		return err
	}
	got := meta.FindStatusCondition(object.Status.Conditions, kind)
	if got == nil || got.Status != want {
		return fmt.Errorf("condition %s is %+v", kind, got)
	}
	return nil
}

// callsFor is how many calls that change a group all shards have received.
func callsFor(t testing.TB, group string) int {
	t.Helper()
	count := 0
	for _, shard := range shardIDs {
		for _, call := range callsOf(t, shard) {
			if call.Group == group {
				count++
			}
		}
	}
	return count
}
