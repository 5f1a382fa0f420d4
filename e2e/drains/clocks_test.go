// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package drains

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
	"nstance.dev/operator/pkg/testing/tier"
)

// The clocks of the operator and of a server may be wrong by more than a drain may take:
// disruption budgets are respected, and no drain is acknowledged before it is over.
func TestWrongClocks(t *testing.T) {
	if !tier.Full() {
		t.Skip("operator and servers have the clock of the machine: make test-full builds them with one that tests set")
	}
	const wrong = 2 * drainTimeout
	for name, test := range map[string]struct {
		operator, server time.Duration
	}{
		"operator-ahead":  {operator: wrong},
		"operator-behind": {operator: -wrong},
		"server-ahead":    {server: wrong},
		"server-behind":   {server: -wrong},
	} {
		t.Run(name, func(t *testing.T) {
			setClock(t, env.ShardServer(steadyShard), test.server)
			setClock(t, env.OperatorProcess(), test.operator)
			nodes := createGroup(t, steadyShard, name, 2)
			env.CreateNamespace(t, name)
			protected, other := newPod(name, "protected", nodes[0]), newPod(name, "other", nodes[1])
			createPods(t, protected, other)
			protect(t, name, protected.Name)

			from := env.AuditEnd(t)
			env.Scale(t, name, 0)
			expectDrained(t, other)
			// The attempts take some seconds, and are those of a drain that is not over.
			testcluster.Eventually(t, timeout, "the eviction is rejected several times", func(context.Context) error {
				attempts := evictions(t, from, name, protected.Name)
				if len(attempts) < 5 {
					return fmt.Errorf("%d attempts", len(attempts))
				}
				for _, attempt := range attempts {
					if attempt.Code != http.StatusTooManyRequests {
						t.Fatalf("an attempt has status %d", attempt.Code)
					}
				}
				return nil
			})
			blocked, _ := env.drains[steadyShard].ofInstance(nodes[0])
			assert.Empty(t, blocked.Acknowledged, "the blocked drain was acknowledged")
			assert.Zero(t, blocked.Deleted, "the instance of the blocked drain was deleted")
			expectClocks(t, blocked, test.operator, test.server)

			unprotect(t, name, protected.Name)
			expectDrained(t, protected)
			env.forcedDeletions.expectNone(t, nodes...)
		})
	}
}

// setClock restarts a component with a clock that is ahead, until the end of the test.
func setClock(t *testing.T, component *controlplane.Component, ahead time.Duration) {
	t.Helper()
	if ahead == 0 {
		return
	}
	restart := func(environment []string) {
		require.NoError(t, component.Stop(context.WithoutCancel(t.Context())))
		component.Env = environment
		testcluster.Start(t, component)
	}
	before := component.Env
	t.Cleanup(func() { restart(before) })
	restart(append(append([]string{}, before...), controlplane.Clock(ahead)...))
}

// expectDrained waits until the Node of a Pod is drained and its instance deleted, and
// checks each acknowledgement.
func expectDrained(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	testcluster.Eventually(t, timeout, "the Node of Pod "+pod.Name+" is drained", func(context.Context) error {
		d, known := env.drains[steadyShard].ofInstance(pod.Spec.NodeName)
		if !known || len(d.Acknowledged) == 0 || d.Deleted.IsZero() {
			return fmt.Errorf("drain %+v", d)
		}
		for _, a := range d.Acknowledged {
			for _, left := range a.Pods {
				if evictable(&left) {
					t.Fatalf("the drain of %s was acknowledged while Pod %s was on its Node", d.Instance, left.Name)
				}
			}
		}
		return nil
	})
}

// expectClocks checks that the processes have the clocks that they should: the leader
// writes its time to the Lease, and the server its time to the notice of a drain.
func expectClocks(t *testing.T, d drain, operator, server time.Duration) {
	t.Helper()
	testcluster.Eventually(t, timeout, "the leader renews its Lease with its clock", func(ctx context.Context) error {
		lease, err := env.Kube.CoordinationV1().Leases(installation.Namespace).Get(ctx, "nstance-operator-leader-election", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime == nil {
			return errors.New("it has no time")
		}
		return isAhead("the Lease", lease.Spec.RenewTime.Time, time.Now(), operator)
	})
	assert.NoError(t, isAhead("the deadline", d.DeleteAt, d.Reported.Add(drainTimeout), server))
}

func isAhead(what string, at, now time.Time, ahead time.Duration) error {
	if off := at.Sub(now) - ahead; off.Abs() > time.Minute {
		return fmt.Errorf("%s is %s ahead, want %s", what, at.Sub(now), ahead)
	}
	return nil
}
