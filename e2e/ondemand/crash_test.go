// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package ondemand

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/nstance"
)

// An operator that is killed again and again while it makes machines makes each
// of them once.
func TestKilledWhileMakingMachines(t *testing.T) {
	const namespace, kills, podsPerKill = "killed", 20, 2
	// most is after how many writes at the latest a leader is killed: two machines
	// take as many at least.
	const most = 10
	watchOperator(t)
	newNamespace(t, namespace)
	before := newCount(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range kills {
		for j := range podsPerKill {
			createPod(t, newPod(namespace, fmt.Sprintf("builder-%d", i*podsPerKill+j)))
		}
		from, after := auditEnd(t), 1+random.IntN(most)
		eventuallyEvery(t, 5*time.Millisecond, time.Minute, fmt.Sprintf("leader %d writes", i), func(context.Context) error {
			if written := len(writes(t, from)); written < after {
				return fmt.Errorf("%d writes, want %d", written, after)
			}
			return nil
		})
		if err := theOperator().Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		releaseLease(t)
		startOperator(t)
	}
	eventuallyEvery(t, time.Second, 3*time.Minute, "all Pods run on their machines", func(ctx context.Context) error {
		return allRun(ctx, namespace, kills*podsPerKill)
	})
	t.Logf("instances on the shards: %v", before.oneEach(t, namespace))
}

// releaseLease lets the next operator lead at once: how long it waits for one that
// was killed is not what is shown here.
func releaseLease(t *testing.T) {
	t.Helper()
	_, err := env.kube.CoordinationV1().Leases(nstance.Namespace).Patch(t.Context(), "nstance-operator-leader-election",
		mergePatch, []byte(`{"spec":{"holderIdentity":null}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}
