// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
)

// When nothing changes the operator writes nothing on a resync: with machines that
// run, one that stays pending, and a Pod whose request cannot be fulfilled.
func TestQuietWhenIdle(t *testing.T) {
	const namespace, running = "quiet", 3
	watchOperator(t)
	newNamespace(t, namespace)
	pending := newPod(namespace, "pending")
	pending.Annotations[v1beta1.AnnotationOnDemandInstanceType] = unavailable
	pending = createPod(t, pending)
	var builders []*corev1.Pod
	for i := range running {
		builders = append(builders, createPod(t, newPod(namespace, fmt.Sprintf("builder-%d", i))))
	}
	for _, builder := range builders {
		untilRuns(t, builder)
	}
	testcluster.Eventually(t, time.Minute, "the last machine has an instance", func(ctx context.Context) error {
		m, err := machineOf(ctx, pending)
		if err == nil && m.instance == "" {
			err = fmt.Errorf("machine %s has no instance", m.name)
		}
		return err
	})
	impossible := newPod(namespace, "impossible")
	impossible.Annotations[v1beta1.AnnotationOnDemandGroup] = "nowhere"
	createPod(t, impossible)
	for pod, reason := range map[string]string{"impossible": "UnknownGroup", "pending": v1beta1.ReasonProviderError} {
		testcluster.Eventually(t, time.Minute, "Pod "+pod+" has an event", func(ctx context.Context) error {
			events, err := podEvents(ctx, namespace, reason)
			if err != nil {
				return err
			}
			return oneEvent(events[pod])
		})
	}

	// The syncs that the operator's own writes trigger come first.
	env.UntilQueued(t, time.Minute, "machine", 2*(running+1))
	from, begin := env.AuditEnd(t), time.Now()
	env.UntilQueued(t, time.Minute, "machine", 2*(running+1))
	t.Logf("watched for %s", time.Since(begin).Round(time.Second))
	if written := env.OperatorWrites(t, from); len(written) > 0 {
		t.Errorf("%d writes while nothing changed:%s", len(written), testcluster.Describe(written))
	}
}
