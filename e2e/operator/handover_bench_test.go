// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package operator

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

const (
	handovers = 50
	// mostHandover is the target for each of them.
	mostHandover = 2 * time.Second
)

// BenchmarkHandover measures from the SIGTERM of a leader to the moment when the other
// operator has the Lease.
func BenchmarkHandover(b *testing.B) {
	// The first one leads, because it was started first.
	leader, next := env.OperatorProcess(), env.Component(env.RunStandby(b).Component)
	took := make([]time.Duration, 0, handovers)
	for b.Loop() {
		for range handovers {
			took = append(took, handOver(b, leader))
			testcluster.Start(b, leader)
			leader, next = next, leader
		}
	}
	slices.Sort(took)
	b.ReportMetric(milliseconds(median(took)), "p50-ms")
	b.ReportMetric(milliseconds(took[len(took)-1]), "max-ms")
	if most := took[len(took)-1]; most > mostHandover {
		b.Errorf("a handover took %s, want at most %s", most, mostHandover)
	}
}

// handOver stops the leader and returns after what time another process has the Lease.
func handOver(b *testing.B, leader *controlplane.Component) time.Duration {
	b.Helper()
	leases := env.Kube.CoordinationV1().Leases(installation.Namespace)
	lease, err := leases.Get(b.Context(), "nstance-operator-leader-election", metav1.GetOptions{})
	require.NoError(b, err)
	before := ptr.Deref(lease.Spec.HolderIdentity, "")
	require.NotEmpty(b, before)
	watcher, err := leases.Watch(b.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=" + lease.Name, ResourceVersion: lease.ResourceVersion,
	})
	require.NoError(b, err)
	defer watcher.Stop()
	start := time.Now()
	stopped := make(chan error, 1)
	go func() { stopped <- leader.Stop(context.WithoutCancel(b.Context())) }()
	for event := range watcher.ResultChan() {
		changed, ok := event.Object.(*coordinationv1.Lease)
		if !ok {
			b.Fatalf("the watch of the Lease returned %v", event.Object)
		}
		if holder := ptr.Deref(changed.Spec.HolderIdentity, ""); holder != "" && holder != before {
			took := time.Since(start)
			require.NoError(b, <-stopped)
			return took
		}
	}
	b.Fatal("the watch of the Lease has ended")
	return 0
}
