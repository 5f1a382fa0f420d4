// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// A guarded pool is scaled down one instance at a time. While a budget blocks the drain of
// one, the pool reports that and no other instance is drained; then it continues.
func TestGuardedScaleDown(t *testing.T) {
	t.Parallel()
	const name, before, after = "guarded", 6, 2
	nodes := createGroup(t, steadyShard, name, before)
	_, err := env.NstanceMachinePools().Patch(t.Context(), name, types.MergePatchType,
		[]byte(`{"spec":{"scaleDown":{"maxUnavailable":1,"pauseWhile":["DrainBlocked"]}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	env.CreateNamespace(t, name)
	// The oldest instance is removed first.
	blocking := newPod(name, "pod-0", nodes[0])
	createPods(t, blocking)
	protect(t, name, blocking.Name)

	watching, stop := context.WithCancel(t.Context())
	most := make(chan int, 1)
	go func() { most <- mostRemovedAtOnce(watching, name) }()

	env.Scale(t, name, after)
	testcluster.Eventually(t, timeout, "the pool reports that a drain blocks its scale-down", func(ctx context.Context) error {
		pool, err := env.NstanceMachinePool(ctx, name)
		if err != nil {
			return err
		}
		return testcluster.HasCondition(pool.Status.Conditions, v1beta1.ConditionScalingDown, metav1.ConditionFalse, v1beta1.ReasonDrainBlocked)
	})
	ofGroup := func(d *drain) bool { return d.Group == name }
	if drains := env.drains[steadyShard].matching(ofGroup); len(drains) != 1 || drains[0].Instance != nodes[0] {
		t.Errorf("while the first drain is blocked there are these: %+v", drains)
	}
	unprotect(t, name, blocking.Name)
	testcluster.Eventually(t, timeout, "the pool is scaled down", func(ctx context.Context) error {
		return errors.Join(env.SizesAre(ctx, name, after), scaledDown(ctx, name))
	})
	stop()

	if n := <-most; n != 1 {
		t.Errorf("up to %d instances were removed at once, want 1", n)
	}
	drains := env.drains[steadyShard].matching(ofGroup)
	if len(drains) != before-after {
		t.Errorf("%d instances were drained, want %d", len(drains), before-after)
	}
	for i := 1; i < len(drains); i++ {
		if previous := drains[i-1]; previous.Deleted.IsZero() || drains[i].Reported.Before(previous.Deleted) {
			t.Errorf("the drain of %s began at %s, before that of %s ended at %s", drains[i].Instance, drains[i].Reported.Format(time.TimeOnly),
				previous.Instance, previous.Deleted.Format(time.TimeOnly))
		}
	}
	count, err := env.CountEvents(t.Context(), name, "ScaleDownBlocked")
	require.NoError(t, err)
	if count != 1 {
		t.Errorf("%d events report that the scale-down was blocked, want 1", count)
	}
}

// scaledDown succeeds when a pool has no condition of a scale-down any more, and is ready.
func scaledDown(ctx context.Context, name string) error {
	pool, err := env.NstanceMachinePool(ctx, name)
	if err != nil {
		return err
	}
	for _, condition := range pool.Status.Conditions {
		if condition.Type == v1beta1.ConditionScalingDown {
			return fmt.Errorf("condition %+v", condition)
		}
	}
	return testcluster.HasCondition(pool.Status.Conditions, v1beta1.ConditionReady, metav1.ConditionTrue, v1beta1.ReasonReady)
}

// mostRemovedAtOnce returns how many instances the server had at most beyond the size of a
// group, until ctx is done: they are being drained or terminated.
func mostRemovedAtOnce(ctx context.Context, name string) (most int) {
	for ctx.Err() == nil {
		group, err := env.Group(ctx, steadyShard, name)
		if err == nil && group != nil {
			most = max(most, len(group.GetInstances().GetInstances())-int(group.GetSize()))
		}
	}
	return most
}
