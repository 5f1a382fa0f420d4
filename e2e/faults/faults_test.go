// SPDX-License-Identifier: Apache-2.0
// Copyright The Nstance Authors.

package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"nstance.dev/operator/e2e/controlplane"
	"nstance.dev/operator/e2e/faultproxy"
	"nstance.dev/operator/e2e/installation"
	"nstance.dev/operator/e2e/testcluster"
)

// faultyPool is the pool that must not lose instances.
const faultyPool = "precious"

// Missing, late or wrong information deletes nothing, and no fault needs an administrator: the
// scale-up that it interrupts completes.
func TestFaults(t *testing.T) {
	o := runFaultyOperator(t, testcluster.ShortLease...)
	env.ExpectNoLosses(t, faultyPool, slices.Concat(
		o.apiServerFaults(), o.leaseFaults(), o.listFaults(), o.controllerFaults(), o.configurationFaults(), o.shardFaults(),
	), o.ensureRunning)
}

// TestFaultsOfOnePool is TestFaults with faults of a single pool each, which happen at the same
// time.
func TestFaultsOfOnePool(t *testing.T) {
	o := runFaultyOperator(t)
	t.Run("writes fail", func(t *testing.T) {
		t.Parallel()
		env.ExpectNoLossesAtOnce(t, "unwritable", o.writeFaults(), o.Proxy.Heal)
	})
	t.Run("a zone has no stock", func(t *testing.T) {
		t.Parallel()
		testZoneWithoutStock(t)
	})
}

// untilMet waits until a fault was applied to so many requests of the operator.
func untilMet(t *testing.T, fault *faultproxy.Fault, times int) {
	t.Helper()
	testcluster.Eventually(t, 2*time.Minute, "the operator meets the fault", func(context.Context) error { return met(times, fault) })
}

// met succeeds when the operator has met some faults so many times in all.
func met(times int, faults ...*faultproxy.Fault) error {
	count := 0
	for _, fault := range faults {
		count += fault.Met()
	}
	if count < times {
		return fmt.Errorf("%d of %d times", count, times)
	}
	return nil
}

// untilUnreachable waits until the pool reports why not all of its shards are
// reachable.
func untilUnreachable(t *testing.T, reason string) {
	t.Helper()
	env.UntilShardsReachable(t, faultyPool, metav1.ConditionFalse, reason)
}

// faultyOperator is the only operator that runs, through a proxy that injects faults.
type faultyOperator struct{ *testcluster.ProxiedOperator }

func runFaultyOperator(t *testing.T, flags ...string) *faultyOperator {
	t.Helper()
	o := &faultyOperator{env.ReplaceOperator(t, slices.Concat(flags, testcluster.ShortProbe, []string{"--on-demand-namespaces=*"})...)}
	// /readyz would wait for the caches, which some faults keep incomplete.
	o.Process.Ready = controlplane.Probe{URL: o.URL() + "/healthz"}
	return o
}

func (o *faultyOperator) restart(t *testing.T) {
	t.Helper()
	require.NoError(t, o.Process.Stop(t.Context()))
	testcluster.Start(t, o.Process)
}

// expectRefusal restarts the operator, which must exit with a message.
func (o *faultyOperator) expectRefusal(t *testing.T, message string) {
	t.Helper()
	require.NoError(t, o.Process.Stop(t.Context()))
	from := o.logSize(t)
	// /healthz responds before the caches are complete.
	_ = o.Process.Start(t.Context())
	o.untilExited(t)
	o.untilLogged(t, from, message)
}

// ensureRunning starts the operator again if it has exited, as its Deployment does.
func (o *faultyOperator) ensureRunning(t *testing.T) {
	t.Helper()
	if _, running := o.Process.PID(); !running {
		testcluster.Start(t, o.Process)
	}
}

// untilExited waits until the operator has exited because it cannot renew its lease.
func (o *faultyOperator) untilExited(t *testing.T) {
	t.Helper()
	testcluster.UntilExited(t, o.Process)
}

// untilWorking waits until the operator leads, has queued pools, and its queues are
// empty again.
func (o *faultyOperator) untilWorking(t *testing.T) {
	t.Helper()
	testcluster.Eventually(t, time.Minute, "the operator has synced the pools", func(ctx context.Context) error {
		added, err := testcluster.QueueAdds(ctx, o.Operator, "machinepool")
		if err != nil {
			return err
		}
		waiting, err := installation.Metric(ctx, o.URL(), "workqueue_depth", nil)
		if err == nil && (added == 0 || waiting > 0) {
			err = fmt.Errorf("%v pools were queued, %v keys wait", added, waiting)
		}
		return err
	})
}

func (o *faultyOperator) logSize(t *testing.T) int {
	t.Helper()
	log, err := os.ReadFile(o.Process.LogPath())
	require.NoError(t, err)
	return len(log)
}

func (o *faultyOperator) untilLogged(t *testing.T, from int, text string) {
	t.Helper()
	testcluster.Eventually(t, time.Minute, "the operator logs: "+text, func(context.Context) error {
		log, err := os.ReadFile(o.Process.LogPath())
		if err == nil && !bytes.Contains(log[from:], []byte(text)) {
			err = errors.New("not logged")
		}
		return err
	})
}

// saveSecret returns a function that creates a Secret again.
func saveSecret(t *testing.T, name string) (restore func()) {
	t.Helper()
	client := env.Kube.CoreV1().Secrets(installation.Namespace)
	saved, err := client.Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return func() {
		t.Helper()
		saved.ObjectMeta = metav1.ObjectMeta{Name: saved.Name, Namespace: saved.Namespace, Labels: saved.Labels}
		_, err := client.Create(context.WithoutCancel(t.Context()), saved, metav1.CreateOptions{})
		require.NoError(t, err)
	}
}

func deleteSecret(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, env.Kube.CoreV1().Secrets(installation.Namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
}

func deleteConfigMap(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, env.Kube.CoreV1().ConfigMaps(installation.Namespace).Delete(t.Context(), name, metav1.DeleteOptions{}))
}
