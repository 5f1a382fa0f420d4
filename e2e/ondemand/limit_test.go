// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/apis/infrastructure/v1beta1"
	"nstance.dev/operator/pkg/testing/tier"
)

// However many Pods request machines at once, there are never more machines than
// allowed, and each rejected Pod has one event. A deleted machine makes room.
func TestLimit(t *testing.T) {
	const namespace, reason = "limited", "OnDemandLimit"
	pods, limit := tier.Pick(25, 100), tier.Pick(5, 10)
	watchOperator(t)
	restartOperator(t, fmt.Sprintf("--on-demand-limit=%d", limit))
	newNamespace(t, namespace)
	from := env.AuditEnd(t)
	created := func() int {
		return len(env.OperatorRequests(t, from, func(r controlplane.Request) bool {
			return r.Resource == "nstancemachines" && r.Subresource == "" && r.Code == http.StatusCreated
		}))
	}
	createPods(t, namespace, pods)
	rejectedOnce := func(ctx context.Context) error {
		events, err := podEvents(ctx, namespace, reason)
		if err != nil {
			return err
		}
		for name, about := range events {
			if err := oneEvent(about); err != nil {
				return fmt.Errorf("pod %s: %w", name, err)
			}
			for _, part := range []string{namespace, group, fmt.Sprint(limit)} {
				if !strings.Contains(about[0].Note, part) {
					return fmt.Errorf("%q does not name %s", about[0].Note, part)
				}
			}
		}
		if len(events) != pods-limit {
			return fmt.Errorf("%d Pods have events, want %d", len(events), pods-limit)
		}
		return nil
	}
	testcluster.Eventually(t, 2*time.Minute, "the limit is reached and every other Pod has an event", func(ctx context.Context) error {
		return errors.Join(machineCount(ctx, namespace, limit), rejectedOnce(ctx))
	})
	if count := created(); count != limit {
		t.Errorf("%d NstanceMachines were created, want %d", count, limit)
	}

	list, err := machinesOf(t.Context(), namespace)
	require.NoError(t, err)
	first := map[string]bool{}
	for _, m := range list {
		first[m.Name] = true
	}
	deleted := list[0].Annotations[v1beta1.AnnotationPodName]
	deletePod(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: deleted}})
	testcluster.Eventually(t, 2*time.Minute, "another Pod gets a machine in place of "+deleted, func(ctx context.Context) error {
		now, err := machinesOf(ctx, namespace)
		if err != nil {
			return err
		}
		others := 0
		for _, m := range now {
			if !first[m.Name] {
				others++
			}
		}
		if others != 1 {
			return fmt.Errorf("%d other machines", others)
		}
		return machineCount(ctx, namespace, limit)
	})
	if err := rejectedOnce(t.Context()); err != nil {
		t.Error(err)
	}
	if count := created(); count != limit+1 {
		t.Errorf("%d NstanceMachines were created, want %d", count, limit+1)
	}
}
