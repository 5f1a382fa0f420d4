// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faults

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1client "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/ptr"

	"nstance.dev/operator/e2e/faultproxy"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

const leaseName = "nstance-operator-leader-election"

func leases() coordinationv1client.LeaseInterface {
	return env.Kube.CoordinationV1().Leases(installation.Namespace)
}

func (o *faultyOperator) leaseFaults() []testcluster.Fault {
	return append([]testcluster.Fault{
		{Name: "the lease cannot be renewed", Happen: o.exitsWhile(o.injected(faultproxy.Rule{Resource: "leases", Code: http.StatusInternalServerError}))},
		{Name: "another process has the lease, with a clock that is an hour ahead", Happen: o.exitsWhenTaken(time.Hour)},
		{Name: "the lease is deleted", Happen: testcluster.During(func(t *testing.T) {
			err := leases().Delete(t.Context(), leaseName, metav1.DeleteOptions{})
			require.NoError(t, err)
			testcluster.Eventually(t, time.Minute, "there is a lease again, or the operator has exited", func(ctx context.Context) error {
				if _, running := o.Process.PID(); !running {
					return nil
				}
				_, err := leases().Get(ctx, leaseName, metav1.GetOptions{})
				return err
			})
		})},
		{Name: "the operator is killed several times", Happen: testcluster.During(func(t *testing.T) {
			for range 3 {
				require.NoError(t, o.Process.Kill(t.Context()))
				env.ReleaseLease(t)
				testcluster.Start(t, o.Process)
			}
		})},
	}, testcluster.InFull(
		testcluster.Fault{Name: "another process has the lease, with a clock that is an hour behind", Happen: o.exitsWhenTaken(-time.Hour)},
		// TestPausedLeader has another operator that leads meanwhile.
		testcluster.Fault{Name: "the operator hangs until its lease has expired", Happen: testcluster.During(func(t *testing.T) {
			defer testcluster.Freeze(t, o.Process)()
			testcluster.Eventually(t, time.Minute, "the lease has expired", func(ctx context.Context) error {
				lease, err := leases().Get(ctx, leaseName, metav1.GetOptions{})
				if err != nil {
					return err
				}
				duration := time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
				if age := time.Since(lease.Spec.RenewTime.Time); age < 2*duration {
					return fmt.Errorf("it was renewed %s ago", age)
				}
				return nil
			})
		})},
	)...)
}

// exitsWhenTaken replaces the holder of the lease by one that never renews it, with a wrong
// clock. The next operator waits until the lease has expired.
func (o *faultyOperator) exitsWhenTaken(ahead time.Duration) func(*testing.T, testcluster.ScaleUp) {
	return testcluster.During(func(t *testing.T) {
		testcluster.Eventually(t, time.Minute, "another process has the lease", func(ctx context.Context) error {
			lease, err := leases().Get(ctx, leaseName, metav1.GetOptions{})
			if err != nil {
				return err
			}
			lease.Spec.HolderIdentity = ptr.To("another")
			lease.Spec.RenewTime = ptr.To(metav1.NowMicro())
			lease.Spec.RenewTime.Time = lease.Spec.RenewTime.Add(ahead)
			_, err = leases().Update(ctx, lease, metav1.UpdateOptions{})
			return err
		})
		o.untilExited(t)
	})
}
