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
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// pause is a way to pause a pool.
type pause struct {
	resource schema.GroupVersionResource
	name     string
	on, off  string
}

// While a pool is paused its status is updated, but nothing is changed on the shards or
// in a spec.
func TestPause(t *testing.T) {
	t.Parallel()
	const on = `{"metadata":{"annotations":{"cluster.x-k8s.io/paused":""}}}`
	const off = `{"metadata":{"annotations":{"cluster.x-k8s.io/paused":null}}}`
	for name, resource := range map[string]schema.GroupVersionResource{
		"paused-pool":        v1beta1.SchemeGroupVersion.WithResource("nstancemachinepools"),
		"paused-machinepool": clusterv1.GroupVersion.WithResource("machinepools"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pause{resource: resource, name: name, on: on, off: off}.expectNoChange(t, name)
		})
	}
}

func TestPausedCluster(t *testing.T) {
	pause{
		resource: clusterv1.GroupVersion.WithResource("clusters"), name: installation.ClusterName,
		on: `{"spec":{"paused":true}}`, off: `{"spec":{"paused":null}}`,
	}.expectNoChange(t, "paused-cluster")
}

// expectNoChange creates a pool and pauses it.
func (p pause) expectNoChange(t *testing.T, name string) {
	t.Helper()
	env.CreatePoolForTest(t, name, 3)
	env.UntilRunning(t, name, 3)
	patch := func(patch string) {
		t.Helper()
		_, err := env.Dynamic.Resource(p.resource).Namespace(installation.Namespace).
			Patch(context.WithoutCancel(t.Context()), p.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	patch(p.on)
	unpaused := false
	t.Cleanup(func() {
		if !unpaused {
			patch(p.off)
		}
	})
	testcluster.Eventually(t, time.Minute, "the pool reports that it is paused", func(ctx context.Context) error {
		return conditionIs(ctx, name, v1beta1.ConditionPaused, metav1.ConditionTrue)
	})

	env.Scale(t, name, 9)
	upsertDirectly(t, "us-west-2a", name, 2)
	from, calls := env.AuditEnd(t), callsFor(t, name, shardIDs...)
	testcluster.Eventually(t, time.Minute, "the status reports the shards", func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, name)
		if err != nil {
			return err
		}
		if pool.Status.Replicas == nil || *pool.Status.Replicas != 4 {
			return fmt.Errorf("replicas are %v", pool.Status.Replicas)
		}
		return nil
	})
	if now := callsFor(t, name, shardIDs...); now != calls {
		t.Errorf("the shards were called %d times while the pool was paused", now-calls)
	}
	specs := env.OperatorWrites(t, from, func(w controlplane.Write) bool {
		return w.Subresource == "" && w.Resource != "events" && strings.HasPrefix(w.Name, name)
	})
	if len(specs) > 0 {
		t.Errorf("wrote to specs while the pool was paused:%s", testcluster.Describe(specs))
	}

	patch(p.off)
	unpaused = true
	env.UntilRunning(t, name, 9)
	if err := conditionIs(t.Context(), name, v1beta1.ConditionPaused, metav1.ConditionFalse); err != nil {
		t.Error(err)
	}
}

func conditionIs(ctx context.Context, pool, kind string, want metav1.ConditionStatus) error {
	object, err := env.NstanceMachinePool(ctx, pool)
	if err != nil {
		return err
	}
	got := meta.FindStatusCondition(object.Status.Conditions, kind)
	if got == nil || got.Status != want {
		return fmt.Errorf("condition %s is %+v", kind, got)
	}
	return nil
}

// callsFor returns how many calls for a group some shards have received.
func callsFor(t testing.TB, group string, shards ...string) int {
	t.Helper()
	count := 0
	for _, shard := range shards {
		for _, call := range env.Calls(t, shard) {
			if call.Group == group {
				count++
			}
		}
	}
	return count
}
