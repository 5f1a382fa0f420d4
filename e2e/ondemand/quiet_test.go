// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"testing"
	"time"

	"nstance.dev/operator/e2e/nstance"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// When nothing happens the operator writes nothing, whatever it looks at again:
// machines that run, one that cannot run, and a Pod that asks for the impossible.
func TestQuietWhenIdle(t *testing.T) {
	const namespace, running = "quiet", 3
	watchOperator(t)
	newNamespace(t, namespace)
	for i := range running {
		untilRuns(t, createPod(t, newPod(namespace, fmt.Sprintf("builder-%d", i))))
	}
	pending := newPod(namespace, "pending")
	pending.Annotations[v1beta1.AnnotationOnDemandInstanceType] = unavailable
	pending = createPod(t, pending)
	eventually(t, time.Minute, "the last machine is ordered", func(ctx context.Context) error {
		m, err := machineOf(ctx, pending)
		if err == nil && m.instance == "" {
			err = fmt.Errorf("machine %s has no instance", m.name)
		}
		return err
	})
	impossible := newPod(namespace, "impossible")
	impossible.Annotations[v1beta1.AnnotationOnDemandGroup] = "nowhere"
	createPod(t, impossible)
	eventually(t, time.Minute, "the Pod was told", func(ctx context.Context) error {
		events, err := podEvents(ctx, namespace, "UnknownGroup")
		if err != nil {
			return err
		}
		return oneEvent(events["impossible"])
	})

	// What follows a write of our own is still part of it.
	untilSynced(t, 2*(running+1))
	from, begin := auditEnd(t), time.Now()
	untilSynced(t, 2*(running+1))
	t.Logf("looked for %s", time.Since(begin).Round(time.Second))
	if written := writes(t, from); len(written) > 0 {
		t.Errorf("%d writes while nothing happened:%s", len(written), describe(written))
	}
}

// untilSynced waits until the operator has looked at machines so many times more.
func untilSynced(t *testing.T, atLeast float64) {
	t.Helper()
	synced := func(ctx context.Context) (float64, error) {
		return nstance.Metric(ctx, env.operator.URL(), "workqueue_adds_total", map[string]string{"name": "machine"})
	}
	start, err := synced(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 4*resync, "machines are looked at", func(ctx context.Context) error {
		now, err := synced(ctx)
		if err == nil && now-start < atLeast {
			err = fmt.Errorf("%v of %v syncs", now-start, atLeast)
		}
		return err
	})
}
